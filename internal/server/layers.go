package server

import (
	"context"
	"errors"
	"fmt"
)

// layers are the running parts of a server, each standing on those started
// before it. They are ended in the reverse order, each awaited before the next.
// A layer that ends by itself ends them all.
//
// A layers value is used by one goroutine.
type layers struct {
	running []*layer
	// ended receives the first layer that ended without being asked to.
	ended chan *layer
}

type layer struct {
	name   string
	cancel context.CancelFunc
	done   chan struct{} // closed when run returned; err is written before
	err    error
}

func newLayers() *layers { return &layers{ended: make(chan *layer, 1)} }

// start runs a layer in its own goroutine, with a context that keeps ctx's
// values but ends only when the layer is stopped.
func (l *layers) start(ctx context.Context, name string, run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	next := &layer{name: name, cancel: cancel, done: make(chan struct{})}
	l.running = append(l.running, next)
	go func() {
		next.err = run(ctx)
		close(next.done)
		if ctx.Err() == nil {
			select {
			case l.ended <- next:
			default:
			}
		}
	}()
}

// stop ends all layers, the last started first, and returns what went wrong.
func (l *layers) stop() error {
	var errs []error
	for i := len(l.running) - 1; i >= 0; i-- {
		layer := l.running[i]
		layer.cancel()
		<-layer.done
		errs = append(errs, layer.failure())
	}
	l.running = nil
	return errors.Join(errs...)
}

// wait runs step and returns its error, or why it was given up: ctx ended or a
// layer failed.
func (l *layers) wait(ctx context.Context, step func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan error, 1)
	go func() { done <- step(ctx) }()
	select {
	case err := <-done:
		return err
	case failed := <-l.ended:
		err := failed.unexpected()
		cancel(err)
		<-done
		return err
	}
}

// failure returns the layer's error once it was asked to end; that it was
// cancelled is none.
func (l *layer) failure() error {
	if l.err == nil || errors.Is(l.err, context.Canceled) {
		return nil
	}
	return fmt.Errorf("server: %s: %w", l.name, l.err)
}

// unexpected says that the layer ended although nobody asked it to.
func (l *layer) unexpected() error {
	if l.err == nil {
		return fmt.Errorf("server: %s ended", l.name)
	}
	return fmt.Errorf("server: %s: %w", l.name, l.err)
}
