package kv

import (
	"testing"
	"time"
)

// TestRevisionTimeoutAdaptsToTheCluster checks that the timeout grows until a read of a slow cluster succeeds, and that
// it shrinks again for a fast cluster.
func TestRevisionTimeoutAdaptsToTheCluster(t *testing.T) {
	var r revisionReader
	for _, latency := range []time.Duration{time.Millisecond, 4 * time.Second, 25 * time.Second, time.Millisecond} {
		tries := 1
		for ; r.timeout() < latency; tries++ {
			if tries > 5 {
				t.Fatalf("no read of a cluster that responds after %v succeeds; the timeout is %v", latency, r.timeout())
			}
			r.slowness.Store(int64(r.timeout()))
		}
		r.slowness.Store(int64(latency))
		if again := r.timeout(); again < min(2*latency, slowTimeout) || again > max(2*latency, revisionTimeout) {
			t.Errorf("after a response in %v the timeout is %v", latency, again)
		}
	}
}
