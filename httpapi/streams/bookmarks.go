package streams

import (
	"cmp"
	"hash/maphash"
	"time"

	"github.com/larder-io/larder/internal/registry/storage"
	"github.com/larder-io/larder/watch"
)

// bookmarkRetry is the pause after a bookmark could not be sent when it was due.
const bookmarkRetry = time.Second

// schedule makes the next bookmark due at after plus pause, or shortly before the end of the watch if that is
// earlier. A watch that does not allow bookmarks gets none before its end.
func (ws *watchStream) schedule(after time.Time, pause time.Duration) {
	if !ws.bookmarks {
		ws.nextBookmark = ws.ends
		return
	}
	ws.nextBookmark = after.Add(pause)
	if last := ws.ends.Add(-storage.LastBookmark); after.Before(last) && last.Before(ws.nextBookmark) {
		ws.nextBookmark = last
	}
}

// bookmarkPause returns the time until the next regular bookmark: BookmarkInterval, or less for the first two of a
// watch. Then the bookmarks of one connection are due at the same time, so that they leave in one write. The
// times of different connections are spread over the interval. A new watch gets no bookmark for a while,
// because tests and short watches expect none.
func (ws *watchStream) bookmarkPause(now time.Time) time.Duration {
	const interval = storage.BookmarkInterval
	connection := any(ws)
	if ws.group != nil {
		connection = ws.group
	}
	offset := time.Duration(maphash.Comparable(ws.streams.bookmarkSeed, connection) % uint64(interval))
	pause := interval - (now.Sub(ws.streams.bookmarkEpoch)+offset)%interval
	if pause < interval/3 {
		pause += interval / 2
	}
	return pause
}

// untilTimer returns the time until a bookmark is due or the watch ends.
func (ws *watchStream) untilTimer() time.Duration {
	return min(time.Until(ws.nextBookmark), time.Until(ws.ends))
}

// runTimer sends a due bookmark or ends the watch, after the timer has fired.
func (ws *watchStream) runTimer(b *batch) error {
	now := time.Now()
	if !now.Before(ws.ends) {
		return errEnd
	}
	if !now.Before(ws.nextBookmark) {
		if err := ws.bookmark(b, now); err != nil {
			return err
		}
	}
	ws.timer.Reset(ws.untilTimer())
	return nil
}

// bookmark sends the bookmark that is due, if all earlier events have been sent. Otherwise it tries again after
// bookmarkRetry.
func (ws *watchStream) bookmark(b *batch, now time.Time) error {
	if ws.unencodable {
		return errEnd
	}
	var d watch.Delivery
	ok := !ws.faults.Holding()
	if ok {
		d, ok = ws.watcher.Bookmark()
	}
	if !ok {
		ws.schedule(now, bookmarkRetry)
		return nil
	}
	ws.schedule(now, ws.bookmarkPause(now))
	return ws.sendBookmark(b, d)
}

func (ws *watchStream) sendBookmark(b *batch, d watch.Delivery) error {
	b.events++
	if err := ws.append(b, d); err != nil {
		return err
	}
	return ws.flush(b)
}

// endWithBookmark ends a watch when the server stops. If little is left to send, it sends that and a
// bookmark, so that the client can resume at any server. Without the bookmark the client would be up to a
// minute behind. A restarted server may not replay that many writes, and the client would have to list again.
func (ws *watchStream) endWithBookmark(b *batch) error {
	if !ws.bookmarks || ws.unencodable {
		return errEnd
	}
	if more, err := ws.drain(b); more || err != nil || ws.faults.Holding() {
		return cmp.Or(err, errEnd)
	}
	known := ws.watcher.LastRevision()
	d, ok := ws.watcher.Bookmark()
	if !ok || d.Revision <= known {
		return errEnd
	}
	return cmp.Or(ws.sendBookmark(b, d), errEnd)
}
