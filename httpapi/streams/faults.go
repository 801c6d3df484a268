package streams

import (
	"cmp"
	"errors"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/httpapi/faults"
	"github.com/larder-io/larder/httpapi/socket"
	"github.com/larder-io/larder/watch"
)

// errCut says that a fault cuts the connection of a watch.
var errCut = errors.New("httpapi: an injected fault cuts the watch")

// poll sets b.deliveries to the events that can be sent now: those that the watcher delivers, unless faults hold them
// back. If end is not empty, a fault then ends the watch in that way. When the watcher ends, held events are lost:
// the client sees that the watch ends.
func (ws *watchStream) poll(b *batch) (end string, err error) {
	if ws.faults.Active() {
		ws.faults.Sent(ws.watcher.LastRevision())
	}
	for drained := false; ; drained = len(b.deliveries) == 0 {
		if ws.faults.Active() {
			b.deliveries, end = ws.faults.Next(b.deliveries[:0], drained)
			if len(b.deliveries) > 0 || end != "" || drained {
				return end, nil // held events stay in memory: those that may be sent are sent before more are polled
			}
		}
		b.deliveries, err = ws.watcher.Poll(b.deliveries[:0])
		if err != nil || !ws.faults.Active() { // a rule that was added during Poll may concern its events
			return "", err
		}
		ws.faults.Keep(b.deliveries)
		clear(b.deliveries)
	}
}

// endAs sends the contents of b and ends the watch in the way that a fault chose.
func (ws *watchStream) endAs(b *batch, end string) error {
	if end == faults.EndExpired {
		last := cmp.Or(ws.faults.LastRevision(), ws.watcher.LastRevision())
		return ws.sendError(b, cache.ErrTooOld{Requested: last, Oldest: last + 1})
	}
	if err := ws.flush(b); err != nil {
		return err
	}
	switch end {
	case faults.EndBookmark:
		d, ok := watch.Delivery{Type: watch.Bookmark, Revision: ws.faults.LastRevision()}, true
		if d.Revision == 0 {
			d, ok = ws.watcher.Bookmark()
			ok = ok && !ws.faults.Holding()
		}
		if ok && ws.bookmarks && !ws.unencodable {
			if err := ws.sendBookmark(b, d); err != nil {
				return err
			}
		}
	case faults.EndReset:
		ws.faults.Close() // a rule that the client sets after the reset concerns another watch
		socket.CloseSocket(ws.Conn)
		return errCut
	}
	return errEnd
}
