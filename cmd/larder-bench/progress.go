package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/larder-io/larder/bench"
)

// How often progress is shown: in place on a terminal, line by line elsewhere.
const (
	refresh = 200 * time.Millisecond
	between = 30 * time.Second
)

// display shows progress on a terminal as one line that changes, and elsewhere as a
// line now and then.
type display struct {
	terminal bool

	mu    sync.Mutex
	w     io.Writer
	shown string // what stands in the changing line
}

// shown runs work and meanwhile shows what progress says. work may say more.
func (o *options) shown(cmd *cobra.Command, progress func() bench.Progress, work func(ctx context.Context, say func(string)) error) error {
	if o.quiet {
		return work(cmd.Context(), func(string) {})
	}
	d := &display{w: cmd.ErrOrStderr(), terminal: isTerminal(cmd.ErrOrStderr())}
	done := make(chan struct{})
	var showing sync.WaitGroup
	showing.Go(func() { d.follow(done, progress) })
	err := work(cmd.Context(), d.say)
	close(done)
	showing.Wait()
	d.line("")
	return err
}

// follow shows progress, if it is not nil, until done is closed.
func (d *display) follow(done <-chan struct{}, progress func() bench.Progress) {
	every := between
	if d.terminal {
		every = refresh
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		text := ""
		if progress != nil {
			text = progress().String()
		}
		switch {
		case d.terminal:
			d.line(text)
		case text != "":
			d.say(text)
		}
	}
}

// say prints a line that stays.
func (d *display) say(text string) {
	d.line("")
	d.mu.Lock()
	defer d.mu.Unlock()
	fmt.Fprintln(d.w, text)
}

// line replaces the changing line.
func (d *display) line(text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.terminal || text == d.shown {
		return
	}
	const most = 110 // a line that wraps could not be replaced
	if runes := []rune(text); len(runes) > most {
		text = string(runes[:most])
	}
	const clear = "\r\x1b[K"
	fmt.Fprint(d.w, clear+text)
	d.shown = text
}

// isTerminal reports whether w is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb"
}
