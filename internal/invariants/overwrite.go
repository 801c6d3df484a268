package invariants

import "bufio"

// Pattern is the bytes that [Overwrite] repeats. They are neither text nor a message of any protocol.
const Pattern = "\xdb\xfe\xadlarder's pattern\xad\xfe\xdb"

// Overwrite fills the whole capacity of b with [Pattern]. Code that gives a buffer back for reuse calls it inside an
// "if Enabled" block. Code that still reads from the buffer then shows these bytes instead of bytes that look right.
func Overwrite(b []byte) {
	b = b[:cap(b)]
	for n := copy(b, Pattern); n > 0 && n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

// OverwriteReader is Overwrite for the buffer of r, which it resets.
func OverwriteReader(r *bufio.Reader) {
	r.Reset(patternReader{})
	_, _ = r.Peek(r.Size())
}

// patternReader reads the pattern without end.
type patternReader struct{}

// Read implements io.Reader.
func (patternReader) Read(p []byte) (int, error) {
	Overwrite(p[:len(p):len(p)])
	return len(p), nil
}
