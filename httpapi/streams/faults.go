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

// drainKept is drain for a watch whose events faults may keep back. When the watcher ends, what is kept is
// lost: the client sees that the watch ends.
func (ws *watchStream) drainKept(b *batch) (more bool, err error) {
	ws.faults.Sent(ws.watcher.LastRevision())
	drained := false
	for before := ws.size; ws.size-before < runSize; {
		var end string
		b.deliveries, end = ws.faults.Next(b.deliveries[:0], drained)
		some := len(b.deliveries) > 0
		if some && ws.unencodable {
			return false, errEnd
		}
		if err := ws.appendAll(b); err != nil {
			return false, err
		}
		switch {
		case end != "":
			return false, ws.endAs(b, end)
		case some: // send all that the faults release before more is polled: polled events stay in memory
			continue
		case drained:
			return false, ws.flush(b)
		}
		if b.deliveries, err = ws.watcher.Poll(b.deliveries[:0]); err != nil {
			return ws.drain(b) // ends in the same way
		}
		drained = len(b.deliveries) == 0
		ws.keep(b)
	}
	return true, ws.flush(b)
}

// keep has faults keep what was polled.
func (ws *watchStream) keep(b *batch) {
	ws.faults.Keep(b.deliveries)
	clear(b.deliveries)
}

// tooOld is the error of a watch that ends with 410.
func (ws *watchStream) tooOld() error {
	last := cmp.Or(ws.faults.LastRevision(), ws.watcher.LastRevision())
	return cache.ErrTooOld{Requested: last, Oldest: last + 1}
}

// endAs sends what b holds and ends the watch as a fault says.
func (ws *watchStream) endAs(b *batch, end string) error {
	if end == faults.EndExpired {
		return ws.sendError(b, ws.tooOld())
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
