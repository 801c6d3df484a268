package embedded

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/larder-io/larder/internal/proctest"
)

// TestStartsWaitForNoTick starts a server whose first tick comes after ten seconds, in a new directory and in a used one.
// An attempt may take longer on a slow machine, so one of three must not.
func TestStartsWaitForNoTick(t *testing.T) {
	const tick = 10 * time.Second
	dir := t.TempDir()
	for _, name := range []string{"new", "used"} {
		took := make([]time.Duration, 0, 3)
		for range cap(took) {
			if name == "new" {
				dir = t.TempDir()
			}
			took = append(took, startTime(t, dir, tick))
			if took[len(took)-1] < tick {
				break
			}
		}
		if last := took[len(took)-1]; last >= tick {
			t.Errorf("%s directory: started after %v, with ticks of %v", name, took, tick)
		}
	}
}

// startTime starts and stops a server, and returns how long it took to start.
func startTime(t *testing.T, dir string, tick time.Duration) time.Duration {
	t.Helper()
	cfg := Config{Dir: dir, UnsafeNoFsync: true, Fatal: func(err error) { t.Error(err) }}
	cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	config, err := serverConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	config.TickMs, config.ElectionMs = uint(tick.Milliseconds()), uint(5*tick.Milliseconds())
	ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
	defer cancel()
	began := time.Now()
	server, err := startServer(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	return time.Since(began)
}
