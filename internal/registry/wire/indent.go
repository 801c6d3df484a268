package wire

import "io"

// Indenter indents compact JSON that is written to it piece by piece, as [Pretty] indents a whole body.
// The output is complete after Flush.
type Indenter struct {
	w   io.Writer
	buf []byte
	err error

	depth   int
	fresh   bool // an object or array has begun and nothing is in it yet
	quoted  bool // inside a string
	escaped bool // behind a backslash in it
}

// NewIndenter returns an Indenter that writes to w, in pieces of a few KiB. It uses buffer,
// which may be nil.
func NewIndenter(w io.Writer, buffer []byte) *Indenter { return &Indenter{w: w, buf: buffer[:0]} }

const (
	indentPiece = 16 << 10
	indentUnit  = "  "
)

// Write implements io.Writer.
func (in *Indenter) Write(p []byte) (int, error) {
	for i := 0; i < len(p) && in.err == nil; {
		if in.quoted {
			i += in.text(p[i:])
		} else {
			in.structure(p[i])
			i++
		}
		if len(in.buf) >= indentPiece {
			in.send()
		}
	}
	return len(p), in.err
}

// text takes a part of a string and returns its length.
func (in *Indenter) text(p []byte) int {
	n := 0
	if in.escaped {
		in.escaped, n = false, 1
	}
	for ; n < len(p) && n < indentPiece; n++ {
		if p[n] == '"' {
			in.quoted = false
			n++
			break
		}
		if p[n] == '\\' {
			if n++; n == len(p) {
				in.escaped = true
				break
			}
		}
	}
	in.buf = append(in.buf, p[:n]...)
	return n
}

// structure writes a byte outside strings, with indentation.
func (in *Indenter) structure(c byte) {
	switch c {
	case ' ', '\n', '\t', '\r':
		return
	case '}', ']':
		in.depth--
		if !in.fresh {
			in.line()
		}
		in.fresh = false
		in.buf = append(in.buf, c)
		return
	}
	if in.fresh {
		in.fresh = false
		in.line()
	}
	switch c {
	case '{', '[':
		in.depth++
		in.fresh = true
		in.buf = append(in.buf, c)
	case ',':
		in.buf = append(in.buf, c)
		in.line()
	case ':':
		in.buf = append(in.buf, ':', ' ')
	default:
		in.quoted = c == '"'
		in.buf = append(in.buf, c)
	}
}

func (in *Indenter) line() {
	in.buf = append(in.buf, '\n')
	for range in.depth {
		in.buf = append(in.buf, indentUnit...)
	}
}

func (in *Indenter) send() {
	if in.err == nil && len(in.buf) > 0 {
		_, in.err = in.w.Write(in.buf)
	}
	in.buf = in.buf[:0]
}

// Flush writes what is left, and returns the buffer and the first error.
func (in *Indenter) Flush() ([]byte, error) {
	in.send()
	return in.buf, in.err
}
