package compare

import (
	"context"
	"slices"
	"testing"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/testservers"
)

// TestWritesAreMeasuredAlone checks that the other server is stopped while one receives writes, and that it runs again
// afterwards.
func TestWritesAreMeasuredAlone(t *testing.T) {
	settings := config(t)
	settings.TestServers.Dir, settings.Quick = t.TempDir(), false
	c, err := New(&settings)
	if err != nil {
		t.Fatal(err)
	}
	if c.started, err = testservers.New(t.Context(), settings.TestServers, "compare"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.started.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, kind := range []string{Larder, Stock} {
		if _, err := c.start(t.Context(), kind); err != nil {
			t.Fatal(err)
		}
	}
	for kind, other := range map[string]string{Larder: Stock, Stock: Larder} {
		var sizes []int
		s := c.undisturbed(step{run: func(ctx context.Context, measured string) ([]*bench.Result, error) {
			sizes = append(sizes, c.ops(measured, 500, 500))
			if _, err := c.servers[kind].Target.Version(ctx); measured != kind || err != nil {
				t.Errorf("while %s is measured: server %s, error %v", kind, measured, err)
			}
			if err := c.servers[other].CheckAlive(); err == nil {
				t.Errorf("%s runs while %s is measured", other, kind)
			}
			// The second server makes the changes that watchers see.
			one, err := c.start(ctx, writer)
			if err != nil {
				return nil, err
			}
			if same, err := c.start(ctx, writer); same != one || err != nil || one == c.servers[Larder] {
				t.Errorf("the second start returned another server, or error %v", err)
			}
			_, err = one.Target.Version(ctx)
			return nil, err
		}})
		if _, err := s.run(t.Context(), kind); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(sizes, []int{50, 500}) {
			t.Errorf("%s: %v operations, want a warm-up of a tenth first", kind, sizes)
		}
		if _, err := c.servers[other].Target.Version(t.Context()); err != nil {
			t.Errorf("%s does not run afterwards: %v", other, err)
		}
	}
}
