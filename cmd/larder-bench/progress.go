package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/larder-io/larder/bench"
)

// progressInterval is how often progress is printed.
const progressInterval = 10 * time.Second

// shown runs work and meanwhile prints what progress says, if it is not nil. work may say more.
func (o *options) shown(cmd *cobra.Command, progress func() bench.Progress, work func(ctx context.Context, say func(string)) error) error {
	if o.quiet {
		return work(cmd.Context(), func(string) {})
	}
	var mu sync.Mutex
	say := func(text string) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintln(cmd.ErrOrStderr(), text)
	}
	done := make(chan struct{})
	var showing sync.WaitGroup
	if progress != nil {
		showing.Go(func() { follow(done, progress, say) })
	}
	err := work(cmd.Context(), say)
	close(done)
	showing.Wait()
	return err
}

// follow prints progress until done is closed.
func follow(done <-chan struct{}, progress func() bench.Progress, say func(string)) {
	tick := time.NewTicker(progressInterval)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		if text := progress().String(); text != "" {
			say(text)
		}
	}
}
