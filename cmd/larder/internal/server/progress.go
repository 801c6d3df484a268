package server

import (
	"fmt"
	"io"
	"time"
)

// progress writes a few lines about the start and the end. It ignores errors of writing.
type progress struct {
	out   io.Writer
	begun time.Time
}

func (p *progress) printf(format string, args ...any) {
	fmt.Fprintf(p.out, format+"\n", args...)
}

// elapsed is the time since the start, short enough to read.
func (p *progress) elapsed() time.Duration {
	return time.Since(p.begun).Round(10 * time.Millisecond)
}
