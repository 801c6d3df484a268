package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Layers are the running parts of a server. Each depends on those started before it. Stop ends them in the
// reverse order, and waits for each, at most for its Limit, before it ends the next. Finally it waits up to ten seconds
// for layers that exceeded their Limit. Wait and Ended report a layer that ended unexpectedly.
//
// A Layers is not safe for concurrent use.
type Layers struct {
	running []*Layer
	ended   chan *Layer
}

// Layer is one part of a server.
type Layer struct {
	// Limit limits how long Stop waits for the layer before it ends the next one; 0 sets no limit. It is for layers
	// that may end only after an earlier layer, or not at all.
	Limit time.Duration

	name   string
	cancel context.CancelFunc
	done   chan struct{} // closed when run returned; err is written before
	err    error
}

// New returns an empty Layers.
func New() *Layers { return &Layers{ended: make(chan *Layer, 1)} }

// Start runs a layer in its own goroutine, with a context that keeps ctx's
// values but ends only when the layer is stopped.
func (l *Layers) Start(ctx context.Context, name string, run func(context.Context) error) *Layer {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	next := &Layer{name: name, cancel: cancel, done: make(chan struct{})}
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
	return next
}

// Ended receives the first layer that ended before it was stopped.
func (l *Layers) Ended() <-chan *Layer { return l.ended }

// lastWait limits how long Stop finally waits for layers that have not ended within their Limit.
const lastWait = 10 * time.Second

// Stop ends all layers, the last started first, and returns their errors. A layer that still runs is an error.
func (l *Layers) Stop() error {
	var errs []error
	for _, layer := range slices.Backward(l.running) {
		layer.cancel()
		var limit <-chan time.Time
		if layer.Limit > 0 {
			limit = time.After(layer.Limit)
		}
		select {
		case <-layer.done:
		case <-limit:
		}
	}
	last, cancel := context.WithTimeout(context.Background(), lastWait)
	defer cancel()
	for _, layer := range slices.Backward(l.running) {
		select {
		case <-layer.done:
		case <-last.Done():
		}
		errs = append(errs, layer.failure())
	}
	l.running = nil
	return errors.Join(errs...)
}

// Wait runs step and returns its error. If a layer ends meanwhile, Wait cancels step's context
// and returns the layer's error.
func (l *Layers) Wait(ctx context.Context, step func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan error, 1)
	go func() { done <- step(ctx) }()
	select {
	case err := <-done:
		return err
	case failed := <-l.ended:
		err := failed.Unexpected()
		cancel(err)
		<-done
		return err
	}
}

// failure returns the error of a stopped layer, except context.Canceled, or an error if the layer has not ended.
func (l *Layer) failure() error {
	select {
	case <-l.done:
	default:
		return fmt.Errorf("server: %s has not ended", l.name)
	}
	if l.err == nil || errors.Is(l.err, context.Canceled) {
		return nil
	}
	return fmt.Errorf("server: %s: %w", l.name, l.err)
}

// Unexpected returns the error of a layer that ended before it was stopped.
func (l *Layer) Unexpected() error {
	if l.err == nil {
		return fmt.Errorf("server: %s ended", l.name)
	}
	return fmt.Errorf("server: %s: %w", l.name, l.err)
}
