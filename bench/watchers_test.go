package bench

import (
	"testing"
	"time"
)

// TestDeliveryLatencyBeginsAtTheAnswer records deliveries before the answer to their change, and
// after it.
func TestDeliveryLatencyBeginsAtTheAnswer(t *testing.T) {
	var w watchers
	w.begin(0, 2)
	answered := time.Now()
	w.recordAfter(0, answered.Add(time.Hour)) // not answered yet
	w.answered[0].Store(answered.UnixNano())
	w.recordAfter(0, answered.Add(-time.Millisecond))
	if late := w.lateness(100); late != 0 {
		t.Errorf("deliveries before the answer came %g s after it", late)
	}
	w.recordAfter(0, answered.Add(100*time.Millisecond))
	if late := w.lateness(100); late < 0.0999 || late > 0.1001 {
		t.Errorf("a delivery 100 ms after the answer came %g s after it", late)
	}
	if late := w.lateness(50); late != 0 {
		t.Errorf("half of the deliveries came %g s after the answer, want 0", late)
	}
}
