package streams

import (
	"net/http"
	"time"

	"github.com/larder-io/larder/httpapi/apimetrics"
	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/reads"
)

// observer reports a watch to the metrics, the request log, the audit log and the trace.
type observer struct {
	began   time.Time           // when the request was received
	open    *apimetrics.Monitor // counts the watch while it is open
	sent    *apimetrics.Monitor // counts its events and its end
	counted apimetrics.Response // is counted by sent at the end, with its size and time filled in
	prefix  int                 // bytes before the event in a frame; sent does not count them

	audit  *exchange.AuditRecord
	line   *exchange.Line // of the request log; nil if requests are not logged
	seated time.Time      // when the watch got its seat; zero once line has it
	spans  func()         // ends the spans of a watch that lists first; nil if it has none, or has listed
}

// frame counts a frame, unless it is empty.
func (o *observer) frame(size int) {
	if size > 0 {
		o.sent.Sent(size - o.prefix)
	}
}

// seatReleased logs how long the watch had its seat, once.
func (o *observer) seatReleased() {
	if o.line == nil || o.seated.IsZero() {
		return
	}
	held := time.Since(o.seated)
	o.line.Add("apf_init_latency", held)
	o.line.Add("apf_execution_time", held)
	o.seated = time.Time{}
}

// listed reports that the initial objects, and the bookmark after them, have been sent.
func (o *observer) listed() {
	took := time.Since(o.began)
	o.open.Initial(took)
	if o.line != nil {
		o.seatReleased()
		o.line.Add("watchlist_init_latency", took)
	}
	o.endSpans()
}

func (o *observer) endSpans() {
	if o.spans != nil {
		o.spans()
		o.spans = nil
	}
}

// ended reports the end of the watch, which has sent size bytes.
func (o *observer) ended(size int) {
	o.endSpans()
	o.open.Leave()
	o.counted.Size, o.counted.Took = size, time.Since(o.began)
	o.sent.Observe(o.counted)
	o.seatReleased()
	o.line.Write(http.StatusOK, nil)
	reads.Annotate(o.audit, o.counted.Life)
	o.audit.End()
}
