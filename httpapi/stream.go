package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"

	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/watch"
)

const (
	// bookmarkEvery and lastBookmark are when bookmarks are sent: about every
	// minute, and that long before the end (apiserver pkg/storage/cacher/cacher.go).
	bookmarkEvery = time.Minute
	lastBookmark  = 2 * time.Second
	// bookmarkRetry is when a bookmark is tried again that there was no time for.
	bookmarkRetry = time.Second
)

// watch answers a WATCH: apiserver pkg/endpoints/handlers/get.go and watch.go.
func (x *exchange) watch(i *installed) {
	f, ok := x.negotiate(i)
	if !ok {
		return
	}
	ws, err := x.openWatch(i, f)
	if err != nil {
		x.fail(err)
		x.observe(i, "cluster", 0)
		return
	}
	x.take(true, ws.run)
}

// openWatch makes everything that a watch needs once its request is gone. Like
// upstream it opens the watch before it looks at how to write it.
func (x *exchange) openWatch(i *installed, f format) (*watchStream, error) {
	o, err := x.listOptions(i)
	if err != nil {
		return nil, err
	}
	scope := x.scopeOf(i, o)
	ws := &watchStream{
		form:      i.view.Form(f.media(), f.shape()),
		legacy:    o.SendInitialEvents == nil,
		bookmarks: o.AllowWatchBookmarks,
		chunked:   x.fast.Request.Header.IsHTTP11(),
		began:     x.received,
		ends:      x.received.Add(x.watchTimeout(o)),
		record:    i.longRunning(listScope(scope), x.RequestInfo()),
		report: func(size int, elapsed time.Duration) {
			i.observe("watch", listScope(scope), http.StatusOK, size, elapsed)
		},
	}
	ctx, cancel := context.WithTimeout(x.s.base, x.s.config.RequestTimeout)
	defer cancel()
	ws.watcher, err = i.view.Resource.Watch(ctx, registry.WatchRequest{
		Scope:             scope,
		ResourceVersion:   o.ResourceVersion,
		SendInitialEvents: o.SendInitialEvents,
		Bookmarks:         o.AllowWatchBookmarks,
		Label:             o.LabelSelector,
		Field:             o.FieldSelector,
	})
	var inStream *registry.StreamError
	if errors.As(err, &inStream) {
		ws.refused = inStream.Err
	} else if err != nil {
		return nil, x.readError(err)
	}
	if err := ws.choose(x, i, f); err != nil {
		if ws.watcher != nil {
			ws.watcher.Close()
		}
		return nil, err
	}
	return ws, nil
}

// choose decides how events are written.
func (ws *watchStream) choose(x *exchange, i *installed, f format) error {
	options, err := x.tableOptions(f)
	if err != nil {
		return err
	}
	if !f.streams {
		_, media := negotiation.MediaTypesForSerializer(i.scope.Serializer)
		return negotiation.NewNotAcceptableError(media)
	}
	if options != nil {
		ws.table = &tableStream{view: i.view, options: options, version: f.convert.GroupVersion()}
	}
	if f.convert != nil && f.convert.Kind == "PartialObjectMetadataList" {
		ws.mute = true
	}
	ws.head = x.watchHead(i, f)
	return nil
}

// watchTimeout is how long the watch lasts.
func (x *exchange) watchTimeout(o *internalversion.ListOptions) time.Duration {
	if o.TimeoutSeconds != nil && *o.TimeoutSeconds != 0 {
		return time.Duration(*o.TimeoutSeconds) * time.Second
	}
	least := x.s.config.MinRequestTimeout
	return time.Duration(float64(least) * (1 + rand.Float64()))
}

// watchHead is the response's head.
func (x *exchange) watchHead(i *installed, f format) []byte {
	contentType := f.mediaType
	if contentType != runtime.ContentTypeJSON {
		contentType += ";stream=watch"
	}
	h := make([]byte, 0, 320)
	h = append(h, "HTTP/1.1 200 OK\r\nAudit-Id: "...)
	h = append(h, x.auditID...)
	h = append(h, "\r\nCache-Control: no-cache, private\r\nContent-Type: "...)
	h = append(h, contentType...)
	h = append(h, "\r\nDate: "...)
	h = time.Now().UTC().AppendFormat(h, http.TimeFormat)
	for _, text := range i.warnings {
		h = append(h, "\r\nWarning: "...)
		h = append(h, warningHeader(text)...)
	}
	if x.fast.Request.Header.IsHTTP11() {
		h = append(h, "\r\nTransfer-Encoding: chunked"...)
	}
	return append(h, "\r\nConnection: close\r\n\r\n"...)
}

// watchStream writes one watch. While there is nothing to tell it holds no
// buffers, only the watcher and the connection.
type watchStream struct {
	watcher *watch.Watcher
	refused error // why there is no watcher: to be told in the stream
	form    *registry.Form
	table   *tableStream // nil unless rows are sent
	head    []byte

	bookmarks bool
	legacy    bool // the client did not ask to be told where the initial objects end
	mute      bool // events cannot be written as asked: the first one ends the watch
	chunked   bool // false: an HTTP/1.0 client, the body ends with the connection
	began     time.Time
	ends      time.Time

	nextBookmark time.Time
	lastSent     bool // the bookmark before the end was tried

	record func(func()) // counts the watch while a function runs
	report func(size int, elapsed time.Duration)
	size   int
}

// run writes the response to its end.
func (ws *watchStream) run(ctx context.Context, st *stream) {
	st.ahead = nil // whoever watches has nothing more to say
	ws.record(func() { ws.serve(ctx, st) })
	ws.report(ws.size, time.Since(ws.began))
}

func (ws *watchStream) serve(ctx context.Context, st *stream) {
	if ws.watcher != nil {
		defer ws.watcher.Close()
	}
	err := ws.send(st, ws.head)
	ws.head = nil
	if err == nil {
		err = ws.follow(ctx, st)
	}
	if err == nil && ws.chunked {
		_ = ws.send(st, []byte("0\r\n\r\n"))
	}
}

// send writes p within the time that one write may take.
func (ws *watchStream) send(st *stream, p []byte) error {
	if err := st.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	_, err := st.Conn.Write(p)
	return err
}

// follow writes events until the watch ends. An error means that the response
// cannot be ended properly.
func (ws *watchStream) follow(ctx context.Context, st *stream) error {
	if ws.refused != nil {
		return ws.sendError(st, ws.refused)
	}
	ws.nextBookmark = ws.began.Add(bookmarkEvery + time.Duration(rand.Int64N(int64(2*time.Second))) - time.Second)
	timer := time.NewTimer(ws.untilWake())
	defer timer.Stop()
	for {
		more, err := ws.drain(ctx, st)
		if !more || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-st.ending:
			return nil
		case <-ws.watcher.Ready():
		case <-timer.C:
			if !time.Now().Before(ws.ends) {
				return nil
			}
			if err := ws.bookmark(st); err != nil {
				return err
			}
			timer.Reset(ws.untilWake())
		}
	}
}

// untilWake is the time until a bookmark is due or the watch ends.
func (ws *watchStream) untilWake() time.Duration {
	wake := ws.ends
	if ws.bookmarks {
		if last := ws.ends.Add(-lastBookmark); !ws.lastSent && last.After(ws.began) {
			wake = last
		}
		if ws.nextBookmark.Before(wake) {
			wake = ws.nextBookmark
		}
	}
	return time.Until(wake)
}

// bookmark sends a bookmark if it is due and everything before it was sent.
func (ws *watchStream) bookmark(st *stream) error {
	if !ws.bookmarks {
		return nil
	}
	now := time.Now()
	last := !ws.lastSent && !now.Before(ws.ends.Add(-lastBookmark))
	if !last && now.Before(ws.nextBookmark) {
		return nil
	}
	d, ok := ws.watcher.Bookmark()
	if !ok {
		ws.nextBookmark = now.Add(bookmarkRetry)
		ws.lastSent = ws.lastSent || last
		return nil
	}
	ws.nextBookmark = now.Add(bookmarkEvery)
	ws.lastSent = ws.lastSent || last
	b := getBatch()
	defer b.release()
	if err := ws.append(b, d); err != nil {
		return ws.sendError(st, err)
	}
	return ws.flush(st, b)
}

// drain sends everything that there is to tell now. more says that the watch goes
// on.
func (ws *watchStream) drain(ctx context.Context, st *stream) (more bool, err error) {
	b := getBatch()
	defer b.release()
	for {
		b.deliveries, err = ws.watcher.Poll(b.deliveries[:0])
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if err != nil {
			return false, ws.sendError(st, err)
		}
		if len(b.deliveries) == 0 {
			return true, nil
		}
		if ws.mute {
			return false, nil
		}
		for _, d := range b.deliveries {
			if err := ws.append(b, d); err != nil {
				return false, ws.sendError(st, err)
			}
			if len(b.buf) >= chunkSize {
				if err := ws.flush(st, b); err != nil {
					return false, err
				}
			}
		}
		if err := ws.flush(st, b); err != nil {
			return false, err
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-st.ending:
			return false, nil
		default:
		}
	}
}

// append adds the frame of d.
func (ws *watchStream) append(b *batch, d watch.Delivery) error {
	if d.Type == watch.InitialEnd && ws.legacy {
		return nil
	}
	if ws.table != nil {
		frame, err := ws.table.frame(d)
		b.buf = append(b.buf, frame...)
		return err
	}
	var err error
	switch d.Type {
	case watch.Bookmark, watch.InitialEnd:
		b.buf, err = ws.form.AppendBookmark(b.buf, d.Revision, d.Type == watch.InitialEnd)
		return err
	}
	frame, err := d.Frame(ws.form.ID(), ws.buildFrame)
	b.buf = append(b.buf, frame...)
	return err
}

// buildFrame makes the frame of an event that all its watchers share.
func (ws *watchStream) buildFrame(d watch.Delivery) ([]byte, error) {
	item, err := ws.form.ItemAt(d.Object, d.Revision)
	if err != nil {
		return nil, err
	}
	event := d.Type.String()
	return ws.form.AppendFrame(make([]byte, 0, ws.form.FrameSize(event, item)), event, item), nil
}

// sendError ends the stream with the Status of err.
func (ws *watchStream) sendError(st *stream, err error) error {
	b := getBatch()
	defer b.release()
	frame, err := ws.form.AppendError(b.buf, registry.WatchStatus(err))
	if err != nil {
		return err
	}
	b.buf = frame
	return ws.flush(st, b)
}

// flush writes what b has gathered, as one chunk.
func (ws *watchStream) flush(st *stream, b *batch) error {
	frames := b.buf[chunkHead:]
	if len(frames) == 0 {
		return nil
	}
	ws.size += len(frames)
	out := frames
	if ws.chunked {
		var room [chunkHead]byte
		head := append(strconv.AppendInt(room[:0], int64(len(frames)), 16), "\r\n"...)
		start := chunkHead - len(head) // right before the frames
		copy(b.buf[start:], head)
		b.buf = append(b.buf, "\r\n"...)
		out = b.buf[start:]
	}
	err := ws.send(st, out)
	b.buf = b.buf[:chunkHead]
	return err
}

// chunkHead is the room that the head of a chunk takes at most: eight digits and
// the end of a line.
const chunkHead = 10

// batch is what a stream needs while it has something to tell. The first chunkHead
// bytes of buf are room for the head of the chunk.
type batch struct {
	deliveries []watch.Delivery
	buf        []byte
}

var batches = sync.Pool{New: func() any {
	return &batch{deliveries: make([]watch.Delivery, 0, 64), buf: make([]byte, chunkHead, 16<<10)}
}}

func getBatch() *batch { return batches.Get().(*batch) }

// release gives b back.
func (b *batch) release() {
	clear(b.deliveries[:cap(b.deliveries)])
	b.deliveries, b.buf = b.deliveries[:0], b.buf[:chunkHead]
	if cap(b.buf) > 2*chunkSize {
		b.buf = make([]byte, chunkHead, 16<<10)
	}
	batches.Put(b)
}

// tableStream makes frames of rows. They are made for each watcher: only the first
// one that it gets has the columns.
type tableStream struct {
	view    *registry.View
	options *metav1.TableOptions
	version schema.GroupVersion
}

func (t *tableStream) frame(d watch.Delivery) ([]byte, error) {
	table, err := t.print(d)
	if err != nil {
		return nil, err
	}
	t.options.NoHeaders = true
	encoder := negotiatedTable(t.version)
	object, err := runtime.Encode(encoder, table)
	if err != nil {
		return nil, err
	}
	event := d.Type
	if event == watch.InitialEnd {
		event = watch.Bookmark
	}
	frame, err := json.Marshal(metav1.WatchEvent{Type: event.String(), Object: runtime.RawExtension{Raw: object}})
	return append(frame, '\n'), err
}

func (t *tableStream) print(d watch.Delivery) (*metav1.Table, error) {
	ctx := context.Background() // printers ask nothing of it
	switch d.Type {
	case watch.Bookmark, watch.InitialEnd:
		return t.view.TableOfBookmark(ctx, d.Revision, d.Type == watch.InitialEnd, t.options, t.version)
	case watch.Deleted:
		return t.view.TableOf(ctx, d.Object, d.Revision, t.options, t.version)
	default:
		return t.view.TableOf(ctx, d.Object, 0, t.options, t.version)
	}
}
