package server

import (
	"context"
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

// late reports a part for which the start no longer waits, if it is not ready. It returns an error only if ctx
// has ended.
func (p *progress) late(ctx context.Context, unready bool, format string, args ...any) error {
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("server: %w", context.Cause(ctx))
	case unready:
		p.printf("late: "+format, args...)
	}
	return nil
}
