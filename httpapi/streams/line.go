package streams

import "time"

// logSeat adds to the line of the log how long the watch had its place, once.
func (ws *watchStream) logSeat() {
	if ws.line == nil || ws.seated.IsZero() {
		return
	}
	held := time.Since(ws.seated)
	ws.line.Add("apf_init_latency", held)
	ws.line.Add("apf_execution_time", held)
	ws.seated = time.Time{}
}

// endSpans ends the spans of a watch that lists first, once.
func (ws *watchStream) endSpans() {
	if ws.listed != nil {
		ws.listed()
		ws.listed = nil
	}
}

// logInitial adds how long the initial objects took.
func (ws *watchStream) logInitial() {
	if ws.line == nil {
		return
	}
	ws.logSeat()
	ws.line.Add("watchlist_init_latency", time.Since(ws.began))
}
