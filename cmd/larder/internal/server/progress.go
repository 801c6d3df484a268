package server

import (
	"context"
	"fmt"
	"io"
	"time"
)

// progress writes a few lines about the start and the end. It ignores errors of writing.
type progress struct {
	out      io.Writer
	terminal bool
	begun    time.Time
}

func newProgress(out io.Writer, terminal bool) *progress {
	if out == nil {
		out = io.Discard
	}
	return &progress{out: out, terminal: terminal, begun: time.Now()}
}

func (p *progress) printf(format string, args ...any) {
	fmt.Fprintf(p.out, format+"\n", args...)
}

// follow writes the result of state once done is closed. On a terminal it also shows earlier states, in one
// line that it rewrites.
func (p *progress) follow(ctx context.Context, done <-chan struct{}, state func() string) {
	const every = 100 * time.Millisecond
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-done:
			if p.terminal {
				fmt.Fprint(p.out, "\r\x1b[K")
			}
			p.printf("%s", state())
			return
		case <-ticker.C:
			if p.terminal {
				fmt.Fprintf(p.out, "\r\x1b[K%s", state())
			}
		}
	}
}

// elapsed is the time since the start, short enough to read.
func (p *progress) elapsed() time.Duration {
	return time.Since(p.begun).Round(10 * time.Millisecond)
}
