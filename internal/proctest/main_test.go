package proctest_test

import (
	"context"
	"testing"
	"time"

	"github.com/larder-io/larder/internal/proctest"
)

// leakingTests leave a goroutine behind, which ends with ctx.
type leakingTests struct{ ctx context.Context }

// Run implements goleak.TestingM.
func (l leakingTests) Run() int {
	go func() { <-l.ctx.Done() }()
	return 0
}

// TestMainWaitsForGoroutines checks that goroutines may end later than goleak waits.
func TestMainWaitsForGoroutines(t *testing.T) {
	late, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if code := (proctest.Settling{TestingM: leakingTests{late}}).Run(); code != 0 || late.Err() == nil {
		t.Errorf("exit code %d after the context's error %v; want 0 after %v", code, late.Err(), context.DeadlineExceeded)
	}
}
