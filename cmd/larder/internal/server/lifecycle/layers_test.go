package lifecycle

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestLayersStopInReverse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var order []string
		l := New()
		for _, name := range []string{"store", "registry", "door"} {
			l.Start(t.Context(), name, func(ctx context.Context) error {
				<-ctx.Done()
				order = append(order, name)
				return ctx.Err()
			})
		}
		if err := l.Stop(); err != nil {
			t.Errorf("cancelled layers report %v", err)
		}
		if want := []string{"door", "registry", "store"}; !slices.Equal(order, want) {
			t.Errorf("stopped in order %q, want %q", order, want)
		}
	})
}

// TestLayersThatEndLate has a layer that ends only after a layer that was started before it. The first delays Stop up
// to its limit, and Stop waits for it at the end.
func TestLayersThatEndLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var order []string
		l, closed := New(), make(chan struct{})
		l.Start(t.Context(), "store", func(ctx context.Context) error {
			<-ctx.Done()
			order = append(order, "store")
			close(closed)
			return nil
		})
		l.Start(t.Context(), "bootstrap", func(context.Context) error {
			<-closed
			time.Sleep(time.Second)
			order = append(order, "bootstrap")
			return errors.New("late")
		}).Limit = time.Minute
		began := time.Now()
		if err := l.Stop(); err == nil || err.Error() != "server: bootstrap: late" {
			t.Errorf("Stop returned %v", err)
		}
		if took := time.Since(began); took != time.Minute+time.Second || !slices.Equal(order, []string{"store", "bootstrap"}) {
			t.Errorf("stopped in order %q, in %v", order, took)
		}
	})
}

// TestLayersThatNeverEnd checks that Stop ends the layers below one that never ends, and returns.
func TestLayersThatNeverEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, stored, over := New(), false, make(chan struct{})
		l.Start(t.Context(), "store", func(ctx context.Context) error { <-ctx.Done(); stored = true; return nil })
		l.Start(t.Context(), "serving", func(context.Context) error { <-over; return nil }).Limit = time.Minute
		if err := l.Stop(); err == nil || err.Error() != "server: serving has not ended" || !stored {
			t.Errorf("Stop returned %v; the store has ended: %v", err, stored)
		}
		close(over)
	})
}

// TestLayersOutliveTheirStarter checks that the end of the server's context does not end the store under requests in
// flight.
func TestLayersOutliveTheirStarter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		l := New()
		l.Start(ctx, "store", func(ctx context.Context) error { <-ctx.Done(); return nil })
		cancel()
		synctest.Wait()
		select {
		case failed := <-l.ended:
			t.Errorf("%s ended", failed.name)
		default:
		}
		if err := l.Stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestLayersFailure(t *testing.T) {
	boom := errors.New("disk on fire")
	for _, test := range []struct {
		name string
		err  error
		want string
	}{
		{"error", boom, "server: store: disk on fire"},
		{"quiet end", nil, "server: store ended"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := New()
				l.Start(t.Context(), "store", func(context.Context) error { return test.err })
				err := l.Wait(t.Context(), func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
				if err == nil || err.Error() != test.want {
					t.Errorf("waiting returned %v, want %q", err, test.want)
				}
				if err := l.Stop(); (err != nil) != (test.err != nil) {
					t.Errorf("stop returned %v", err)
				}
			})
		})
	}
}

func TestLayersWaitReturnsTheStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New()
		l.Start(t.Context(), "store", func(ctx context.Context) error { <-ctx.Done(); return nil })
		want := errors.New("no such bucket")
		if err := l.Wait(t.Context(), func(context.Context) error { return want }); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
		if err := l.Stop(); err != nil {
			t.Error(err)
		}
	})
}
