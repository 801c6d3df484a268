package streams

import (
	"cmp"
	"time"

	"github.com/larder-io/larder/internal/registry/storage"
	"github.com/larder-io/larder/watch"
)

// bookmarkRetry is the pause after a bookmark could not be sent when it was due.
const bookmarkRetry = time.Second

// runTimer sends a due bookmark or ends the watch, after the timer has fired. resting means that nothing is
// left to send.
func (ws *watchStream) runTimer(b *batch, resting bool) error {
	now := time.Now()
	if !now.Before(ws.ends) {
		return errEnd
	}
	if err := ws.bookmark(b, now, resting); err != nil {
		return err
	}
	ws.timer.Reset(ws.untilTimer(now))
	return nil
}

// untilTimer returns the time until a bookmark is due or the watch ends.
func (ws *watchStream) untilTimer(now time.Time) time.Duration {
	next := ws.ends
	if ws.bookmarks {
		if last := ws.ends.Add(-storage.LastBookmark); !ws.lastTried && last.After(ws.observer.began) {
			next = last
		}
		if ws.nextBookmark.Before(next) {
			next = ws.nextBookmark
		}
	}
	return next.Sub(now)
}

// bookmark sends a bookmark if one is due and all earlier events have been sent.
func (ws *watchStream) bookmark(b *batch, now time.Time, resting bool) error {
	if !ws.bookmarks {
		return nil
	}
	last := !ws.lastTried && !now.Before(ws.ends.Add(-storage.LastBookmark))
	if !last && now.Before(ws.nextBookmark) {
		return nil
	}
	ws.lastTried = ws.lastTried || last
	if ws.unencodable {
		return errEnd
	}
	d, ok := ws.watcher.Bookmark()
	if !ok || !resting {
		ws.nextBookmark = now.Add(bookmarkRetry)
		return nil
	}
	ws.nextBookmark = now.Add(storage.BookmarkInterval)
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
// minute behind, and would have to list again if that minute had more writes than a restarted server
// replays.
func (ws *watchStream) endWithBookmark(b *batch) error {
	if !ws.bookmarks || ws.unencodable || ws.faults.Holding() {
		return errEnd
	}
	if more, err := ws.drain(b); more || err != nil {
		return cmp.Or(err, errEnd)
	}
	known := ws.watcher.LastRevision()
	d, ok := ws.watcher.Bookmark()
	if !ok || d.Revision <= known {
		return errEnd
	}
	return cmp.Or(ws.sendBookmark(b, d), errEnd)
}
