package transcode

// Writer writes messages with a walker, and so with templates, of its own.
type Writer struct{ w walker }

// NewWriter returns a Writer without templates.
func NewWriter() *Writer { return &Writer{walker{templates: templates{trust: maxTrust}}} }

// Append is [Plan.Append] with the Writer's walker.
func (w *Writer) Append(p *Plan, dst, msg []byte) (out []byte, copied bool, err error) {
	return w.w.append(p, dst, msg)
}

// Templates returns the number of templates.
func (w *Writer) Templates() int { return len(w.w.templates.all) }

// MaxTemplates is the number of templates that a walker keeps, MaxTemplateSize the size of the largest.
const (
	MaxTemplates    = maxTemplates
	MaxTemplateSize = maxTemplateSize
)
