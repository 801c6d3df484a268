package transcode

// Writer writes plain messages by a walker of its own, and so by stencils of its own.
type Writer struct{ w walker }

// NewWriter returns one without stencils.
func NewWriter() *Writer { return &Writer{walker{stencils: stencils{trust: mostTrust}}} }

// Append is AppendPlain. It also says whether a stencil was of use, and how many there are.
func (w *Writer) Append(p *Plan, dst, msg []byte) (out []byte, used bool, stencils int) {
	w.w.src, w.w.plain, w.w.slots = msg, true, w.w.slots[:0]
	w.w.appended(dst)
	used = w.w.copied(p.root)
	if !used && !w.w.walk(p.root) {
		return nil, false, 0
	}
	return w.w.written(), used, len(w.w.stencils.all)
}

// MostStencils is how many a walker keeps, LargestStencil the largest message of one.
const (
	MostStencils   = mostStencils
	LargestStencil = largestStencil
)
