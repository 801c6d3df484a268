package server

import (
	"context"
	"fmt"
	"io"
	"strings"
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

// elapsed returns the time since the start, rounded for display.
func (p *progress) elapsed() time.Duration {
	return time.Since(p.begun).Round(10 * time.Millisecond)
}

// late reports that the start no longer waits for an unready part. It returns an error only if ctx has ended.
func (p *progress) late(ctx context.Context, unready bool, format string, args ...any) error {
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("server: %w", context.Cause(ctx))
	case unready:
		p.printf("late: "+format, args...)
	}
	return nil
}

// quote returns a path as a word of a shell command.
func quote(path string) string {
	if !strings.ContainsAny(path, " \t\n\"'`$&|;<>()*?[]#~!\\") {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}
