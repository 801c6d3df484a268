package bench

import (
	"testing"
	"time"
)

// TestDeliveryLatencyBeginsAtTheResponse records deliveries before and after the response to their change.
func TestDeliveryLatencyBeginsAtTheResponse(t *testing.T) {
	var w watchers
	w.begin(0, 2)
	responded := time.Now()
	w.recordAfter(0, responded.Add(time.Hour)) // before the response
	w.responded[0].Store(responded.UnixNano())
	w.recordAfter(0, responded.Add(-time.Millisecond))
	if late := w.lateness(100); late != 0 {
		t.Errorf("deliveries before the response: latency %g s, want 0", late)
	}
	w.recordAfter(0, responded.Add(100*time.Millisecond))
	if late := w.lateness(100); late < 0.0999 || late > 0.1001 {
		t.Errorf("a delivery 100 ms after the response: latency %g s", late)
	}
	if late := w.lateness(50); late != 0 {
		t.Errorf("the median latency is %g s, want 0", late)
	}
}
