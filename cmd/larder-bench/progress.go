package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/larder-io/larder/bench"
)

// progressInterval is how often progress is printed.
const progressInterval = 10 * time.Second

// shown runs work and meanwhile prints progress, unless that is nil. work may print further lines with say.
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
	going, done := context.WithCancel(context.Background())
	var showing sync.WaitGroup
	if progress != nil {
		showing.Go(func() { follow(going, progress, say) })
	}
	err := work(cmd.Context(), say)
	done()
	showing.Wait()
	return err
}

// follow prints progress until ctx ends.
func follow(ctx context.Context, progress func() bench.Progress, say func(string)) {
	_ = wait.PollUntilContextCancel(ctx, progressInterval, false, func(context.Context) (done bool, err error) {
		if text := progress().String(); text != "" {
			say(text)
		}
		return false, nil
	})
}
