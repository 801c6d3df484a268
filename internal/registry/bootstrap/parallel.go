package bootstrap

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"
)

// task creates or reconciles one object.
type task func(context.Context) error

// maxParallel limits the concurrent writes. They share etcd's sync to disk, which is nearly all of their
// cost.
const maxParallel = 16

// inParallel runs all tasks, also after one has failed, and joins their errors.
func inParallel(ctx context.Context, tasks []task) error {
	var group errgroup.Group
	group.SetLimit(maxParallel)
	errs := make([]error, len(tasks))
	for i, t := range tasks {
		group.Go(func() error {
			errs[i] = t(ctx)
			return nil
		})
	}
	_ = group.Wait()
	return errors.Join(errs...)
}
