package wire

import (
	"bufio"
	"io"
)

// indenter is the result of NewIndenter.
type indenter struct {
	w       *bufio.Writer // keeps its first error
	depth   int
	fresh   bool // an object or array has begun and nothing is in it yet
	quoted  bool // inside a string
	escaped bool // behind a backslash in it
}

// NewIndenter returns a writer that indents compact JSON as upstream's pretty serializer does: by two spaces, without a
// newline at the end. It writes to w in pieces of a few KiB. The output is complete after Close.
func NewIndenter(w io.Writer) io.WriteCloser { return &indenter{w: bufio.NewWriter(w)} }

// Write implements io.Writer.
func (in *indenter) Write(p []byte) (int, error) {
	for i := 0; i < len(p); {
		if in.quoted {
			i += in.text(p[i:])
		} else {
			in.structure(p[i])
			i++
		}
	}
	_, err := in.w.Write(nil)
	return len(p), err
}

// text writes a part of a string and returns its length.
func (in *indenter) text(p []byte) int {
	n := 0
	if in.escaped {
		in.escaped, n = false, 1
	}
	for ; n < len(p); n++ {
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
	in.w.Write(p[:n])
	return n
}

// structure writes a byte outside strings, with indentation.
func (in *indenter) structure(c byte) {
	switch c {
	case ' ', '\n', '\t', '\r':
		return
	case '}', ']':
		in.depth--
		if !in.fresh {
			in.line()
		}
		in.fresh = false
		in.w.WriteByte(c)
		return
	}
	if in.fresh {
		in.fresh = false
		in.line()
	}
	in.w.WriteByte(c)
	switch c {
	case '{', '[':
		in.depth++
		in.fresh = true
	case ',':
		in.line()
	case ':':
		in.w.WriteByte(' ')
	case '"':
		in.quoted = true
	}
}

func (in *indenter) line() {
	in.w.WriteByte('\n')
	for range in.depth {
		in.w.WriteString("  ")
	}
}

// Close writes buffered bytes, and returns the first error.
func (in *indenter) Close() error { return in.w.Flush() }
