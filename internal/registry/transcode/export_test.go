package transcode

// Writer writes messages by its own walker, and so with its own templates.
type Writer struct{ w walker }

// NewWriter returns one without templates.
func NewWriter() *Writer { return &Writer{walker{templates: templates{trust: maxTrust}}} }

// Append is [Plan.Append] by this walker.
func (w *Writer) Append(p *Plan, dst, msg []byte) (out []byte, copied bool, err error) {
	return w.w.append(p, dst, msg)
}

// Templates is how many there are.
func (w *Writer) Templates() int { return len(w.w.templates.all) }

// MaxTemplates is how many a walker keeps, MaxTemplateSize the largest message of one.
const (
	MaxTemplates    = maxTemplates
	MaxTemplateSize = maxTemplateSize
)
