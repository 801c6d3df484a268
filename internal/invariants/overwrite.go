package invariants

// Pattern is what [Overwrite] writes again and again: no text, and no message of any
// protocol.
const Pattern = "\xdb\xfe\xadlarder's pattern\xad\xfe\xdb"

// Overwrite fills the whole capacity of b with [Pattern]. Code that gives a buffer back for
// reuse calls it inside an "if Enabled" block, so that code that still reads from the buffer
// afterwards shows it instead of bytes that look right.
func Overwrite(b []byte) {
	b = b[:cap(b)]
	for n := copy(b, Pattern); n > 0 && n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}
