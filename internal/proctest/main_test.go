package proctest_test

import (
	"context"
	"testing"
	"time"

	"github.com/larder-io/larder/internal/proctest"
)

// leaving is a run of tests that leaves a goroutine behind until ctx ends.
type leaving struct{ ctx context.Context }

// Run implements goleak.TestingM.
func (l leaving) Run() int {
	go func() { <-l.ctx.Done() }()
	return 0
}

// TestMainWaitsForGoroutines checks that goroutines may end later than goleak waits.
func TestMainWaitsForGoroutines(t *testing.T) {
	late, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if code := (proctest.Settling{TestingM: leaving{late}}).Run(); code != 0 || late.Err() == nil {
		t.Errorf("exit code %d, the goroutine's context ended with %v", code, late.Err())
	}
}
