package server

import (
	"context"
	"fmt"
	"io"
	"time"
)

// progress writes the few lines a start and an end are worth. Failing to write
// them is nobody's concern.
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

// follow rewrites one line with what state says until done is closed, then
// leaves its last word standing. Only a terminal sees it move.
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
