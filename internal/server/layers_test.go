package server

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
)

func TestLayersStopInReverse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var order []string
		l := newLayers()
		for _, name := range []string{"store", "registry", "door"} {
			l.start(t.Context(), name, func(ctx context.Context) error {
				<-ctx.Done()
				order = append(order, name)
				return ctx.Err()
			})
		}
		if err := l.stop(); err != nil {
			t.Errorf("cancelled layers report %v", err)
		}
		if want := []string{"door", "registry", "store"}; !slices.Equal(order, want) {
			t.Errorf("stopped in order %q, want %q", order, want)
		}
	})
}

// TestLayersOutliveTheirStarter: the context that asks the server to end must not
// end the store under requests in flight.
func TestLayersOutliveTheirStarter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		l := newLayers()
		l.start(ctx, "store", func(ctx context.Context) error { <-ctx.Done(); return nil })
		cancel()
		synctest.Wait()
		select {
		case failed := <-l.ended:
			t.Errorf("%s ended", failed.name)
		default:
		}
		if err := l.stop(); err != nil {
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
				l := newLayers()
				l.start(t.Context(), "store", func(context.Context) error { return test.err })
				err := l.wait(t.Context(), func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
				if err == nil || err.Error() != test.want {
					t.Errorf("waiting returned %v, want %q", err, test.want)
				}
				if err := l.stop(); (err != nil) != (test.err != nil) {
					t.Errorf("stop returned %v", err)
				}
			})
		})
	}
}

func TestLayersWaitReturnsTheStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLayers()
		l.start(t.Context(), "store", func(ctx context.Context) error { <-ctx.Done(); return nil })
		want := errors.New("no such bucket")
		if err := l.wait(t.Context(), func(context.Context) error { return want }); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
		if err := l.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestProgressFollow(t *testing.T) {
	for _, terminal := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var out strings.Builder
			p := newProgress(&out, terminal)
			done := make(chan struct{})
			count := 0
			finished := make(chan struct{})
			go func() {
				defer close(finished)
				p.follow(t.Context(), done, func() string { count++; return "mirrored" })
			}()
			synctest.Wait()
			close(done)
			<-finished
			if got := strings.Count(out.String(), "\n"); got != 1 {
				t.Errorf("terminal %v: %d lines in %q", terminal, got, out.String())
			}
			if strings.Contains(out.String(), "\r") != terminal {
				t.Errorf("terminal %v: wrote %q", terminal, out.String())
			}
		})
	}
}
