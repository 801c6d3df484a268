package transcode

// Writer writes messages by a walker of its own, and so by stencils of its own.
type Writer struct{ w walker }

// NewWriter returns one without stencils.
func NewWriter() *Writer { return &Writer{walker{stencils: stencils{trust: mostTrust}}} }

// Append is [Plan.Append], or [Plan.AppendPlain] if the message is known to be plain.
func (w *Writer) Append(p *Plan, dst, msg []byte, plain bool) (out []byte, how Result, err error) {
	return w.w.append(p, dst, msg, plain)
}

// Stencils is how many there are.
func (w *Writer) Stencils() int { return len(w.w.stencils.all) }

// MostStencils is how many a walker keeps, LargestStencil the largest message of one.
const (
	MostStencils   = mostStencils
	LargestStencil = largestStencil
)
