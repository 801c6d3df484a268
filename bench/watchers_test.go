package bench

import (
	"testing"
	"time"
)

// TestDeliveryLatencyBeginsAtTheResponse records deliveries before and after the response to their change.
func TestDeliveryLatencyBeginsAtTheResponse(t *testing.T) {
	var w watchers
	w.begin(0, 2)
	answered := time.Now()
	w.recordAfter(0, answered.Add(time.Hour)) // before the response
	w.answered[0].Store(answered.UnixNano())
	w.recordAfter(0, answered.Add(-time.Millisecond))
	if late := w.lateness(100); late != 0 {
		t.Errorf("deliveries before the response: latency %g s, want 0", late)
	}
	w.recordAfter(0, answered.Add(100*time.Millisecond))
	if late := w.lateness(100); late < 0.0999 || late > 0.1001 {
		t.Errorf("a delivery 100 ms after the response: latency %g s", late)
	}
	if late := w.lateness(50); late != 0 {
		t.Errorf("the median latency is %g s, want 0", late)
	}
}
