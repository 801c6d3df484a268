package bootstrap

import (
	"context"
	"errors"
	"sync"

	"golang.org/x/sync/errgroup"
)

// task makes or reconciles one object.
type task func(context.Context) error

// atOnce is how many objects are written at once. Writes that meet in the store
// share its sync to disk, which is nearly all that they cost.
const atOnce = 16

// inParallel runs all tasks, also after one has failed, and joins their errors.
func inParallel(ctx context.Context, tasks []task) error {
	var (
		group errgroup.Group
		mu    sync.Mutex
		errs  []error // guarded by mu
	)
	group.SetLimit(atOnce)
	for _, t := range tasks {
		group.Go(func() error {
			if err := t(ctx); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
			return nil
		})
	}
	_ = group.Wait()
	return errors.Join(errs...)
}
