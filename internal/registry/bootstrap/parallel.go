package bootstrap

import (
	"context"
	"errors"
	"sync"

	"golang.org/x/sync/errgroup"
)

// task creates or reconciles one object.
type task func(context.Context) error

// maxParallel limits the concurrent writes. They share etcd's sync to disk, which is nearly all of their
// cost.
const maxParallel = 16

// inParallel runs all tasks, also after one has failed, and joins their errors.
func inParallel(ctx context.Context, tasks []task) error {
	var (
		group errgroup.Group
		mu    sync.Mutex
		errs  []error // guarded by mu
	)
	group.SetLimit(maxParallel)
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
