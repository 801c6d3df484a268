package relay_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/internal/registry/wire"
	"github.com/larder-io/larder/internal/relay"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/kvtest"
)

const prefix = "/registry/things/"

// change is one change of one object. Without data it is a deletion.
type change struct {
	revision  int64
	key, data string
	created   bool
}

// upstream imitates an API server that serves ConfigMaps under a name. It is an http.RoundTripper, so that it works
// in a synctest bubble.
type upstream struct {
	resource string
	writer   wire.Writer
	protobuf bool
	// redefined is the value of Redefined in the stores that follow it.
	redefined bool
	client    *http.Client // reaches it
	base      *url.URL

	mu        sync.Mutex
	revision  int64
	log       []change
	compacted int64
	changed   chan struct{} // is closed by each change
	// served is the revision up to which lagging watches see the log; 0 is all of it. Every lagging-th watch lags; if
	// lagging is 0, each does.
	served    int64
	lagging   int
	opened    int
	bookmarks int // that each watch was asked to send
	cuts      int // of all watches
	// respond replaces the response to a request, if it returns one.
	respond  func(*http.Request) *http.Response
	requests []string // as PATH?QUERY
}

func newUpstream(resource string, isProtobuf bool) *upstream {
	kind := wire.Kind{APIVersion: "v1", Kind: "ConfigMap", ListKind: "ConfigMapList"}
	u := &upstream{resource: resource, protobuf: isProtobuf, revision: 1, changed: make(chan struct{}), writer: wire.JSON(kind),
		base: &url.URL{Scheme: "https", Host: "upstream", Path: "/base"}}
	u.client = &http.Client{Transport: u}
	if isProtobuf {
		u.writer = wire.Protobuf(kind)
	}
	return u
}

// locked runs fn with the lock and wakes the watches.
func (u *upstream) locked(fn func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	fn()
	close(u.changed)
	u.changed = make(chan struct{})
}

// put writes one object and returns its revision. The key is namespace/name.
func (u *upstream) put(key, data string) (revision int64) {
	u.locked(func() {
		_, found := u.stateLocked(u.revision)[key]
		u.revision++
		u.log = append(u.log, change{u.revision, key, data, !found})
		revision = u.revision
	})
	return revision
}

// remove deletes objects in one revision.
func (u *upstream) remove(keys ...string) (revision int64) {
	u.locked(func() {
		u.revision++
		for _, key := range keys {
			u.log = append(u.log, change{revision: u.revision, key: key})
		}
		revision = u.revision
	})
	return revision
}

// elsewhere writes to another resource.
func (u *upstream) elsewhere() (revision int64) {
	u.locked(func() {
		u.revision++
		revision = u.revision
	})
	return revision
}

// restore goes back to a revision.
func (u *upstream) restore(revision int64) {
	u.locked(func() {
		u.revision = revision
		u.log = slices.DeleteFunc(u.log, func(c change) bool { return c.revision > revision })
		u.cuts++
	})
}

func (u *upstream) cut()               { u.locked(func() { u.cuts++ }) }
func (u *upstream) bookmark()          { u.locked(func() { u.bookmarks++ }) }
func (u *upstream) serve(served int64) { u.locked(func() { u.served = served }) }

// count returns how many requests had a part.
func (u *upstream) count(part string) (n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, request := range u.requests {
		if strings.Contains(request, part) {
			n++
		}
	}
	return n
}

// stateLocked returns the objects of a revision, as they were written last.
func (u *upstream) stateLocked(revision int64) map[string]change {
	state := make(map[string]change)
	for _, c := range u.log {
		switch {
		case c.revision > revision:
		case c.data == "":
			delete(state, c.key)
		default:
			state[c.key] = c
		}
	}
	return state
}

// item encodes an object as it appears in lists.
func (u *upstream) item(c change) []byte {
	o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ResourceVersion: strconv.FormatInt(c.revision, 10)}}
	if c.key != "" {
		o.Namespace, o.Name, _ = strings.Cut(c.key, "/")
		o.Data = map[string]string{"v": c.data, "metadata": `{"name":"x"}`}
	}
	encode := o.Marshal
	if !u.protobuf {
		encode = func() ([]byte, error) { return json.Marshal(o) }
	}
	data, err := encode()
	if err != nil {
		panic(err)
	}
	return data
}

// value returns the value that the store must have for an object.
func (u *upstream) value(c change) string {
	return strings.TrimSuffix(string(u.writer.AppendObject(nil, u.item(c))), "\n")
}

func (u *upstream) mediaType() string {
	if u.protobuf {
		return "application/vnd.kubernetes.protobuf"
	}
	return "application/json"
}

// RoundTrip implements http.RoundTripper.
func (u *upstream) RoundTrip(request *http.Request) (*http.Response, error) {
	u.mu.Lock()
	u.requests = append(u.requests, request.URL.Path+"?"+request.URL.RawQuery)
	respond := u.respond
	u.mu.Unlock()
	if respond != nil {
		if response := respond(request); response != nil {
			return response, nil
		}
	}
	if err := request.Context().Err(); err != nil {
		return nil, err
	}
	query := request.URL.Query()
	path, ok := strings.CutPrefix(request.URL.Path, "/base/api/v1/")
	namespace := ""
	if rest, found := strings.CutPrefix(path, "namespaces/"); found {
		namespace, path, _ = strings.Cut(rest, "/")
	}
	switch {
	case !ok || path != u.resource || request.Header.Get("Accept") != u.mediaType():
		return u.status(http.StatusNotFound, metav1.StatusReasonNotFound), nil
	case query.Get("watch") == "true":
		return u.watch(request.Context(), query), nil
	}
	return u.list(namespace, query), nil
}

// ServeHTTP implements http.Handler.
func (u *upstream) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	response, err := u.RoundTrip(request)
	if err != nil {
		return
	}
	defer func() { _ = response.Body.Close() }()
	maps.Copy(w.Header(), response.Header)
	w.WriteHeader(response.StatusCode)
	control := http.NewResponseController(w)
	_ = control.Flush()
	for buffer := make([]byte, 100); ; {
		n, err := response.Body.Read(buffer)
		if _, failed := w.Write(buffer[:n]); err != nil || failed != nil {
			return
		}
		_ = control.Flush()
	}
}

// response returns a response with a body.
func (u *upstream) response(code int, body io.ReadCloser) *http.Response {
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {u.mediaType()}}, Body: body}
}

func (u *upstream) statusObject(code int32, reason metav1.StatusReason) []byte {
	status := metav1.Status{Status: "Failure", Code: code, Reason: reason, Message: "no"}
	if u.protobuf {
		data, err := status.Marshal()
		if err != nil {
			panic(err)
		}
		return data
	}
	data, err := json.Marshal(status)
	if err != nil {
		panic(err)
	}
	return data
}

func (u *upstream) status(code int, reason metav1.StatusReason) *http.Response {
	body := u.statusWriter().AppendObject(nil, u.statusObject(int32(code), reason))
	return u.response(code, io.NopCloser(bytes.NewReader(body)))
}

func (u *upstream) statusWriter() wire.Writer {
	kind := wire.Kind{APIVersion: "v1", Kind: "Status"}
	if u.protobuf {
		return wire.Protobuf(kind)
	}
	return wire.JSON(kind)
}

// list responds with a page. A continue token is REVISION,KEY.
func (u *upstream) list(namespace string, query url.Values) *http.Response {
	u.mu.Lock()
	defer u.mu.Unlock()
	at, from := u.revision, ""
	if exact := query.Get("resourceVersion"); exact != "" {
		at, _ = strconv.ParseInt(exact, 10, 64)
	}
	if token := query.Get("continue"); token != "" {
		revision, start, _ := strings.Cut(token, ",")
		at, _ = strconv.ParseInt(revision, 10, 64)
		from = start
	}
	if at < u.compacted {
		return u.status(http.StatusGone, metav1.StatusReasonExpired)
	}
	state := u.stateLocked(at)
	name := strings.TrimPrefix(query.Get("fieldSelector"), "metadata.name=")
	keys := slices.DeleteFunc(slices.Sorted(maps.Keys(state)), func(key string) bool {
		ns, n, _ := strings.Cut(key, "/")
		return key < from || namespace != "" && ns != namespace || name != "" && n != name
	})
	meta := wire.ListMeta{Revision: at}
	if limit, _ := strconv.Atoi(query.Get("limit")); limit > 0 && len(keys) > limit {
		remaining := int64(len(keys) - limit)
		meta.Continue, meta.Remaining = fmt.Sprintf("%d,%s", at, keys[limit]), &remaining
		keys = keys[:limit]
	}
	var items [][]byte
	for _, key := range keys {
		items = append(items, u.item(state[key]))
	}
	return u.response(http.StatusOK, io.NopCloser(bytes.NewReader(u.encodeList(meta, items))))
}

// encodeList returns the body of a list.
func (u *upstream) encodeList(meta wire.ListMeta, items [][]byte) (body []byte) {
	size := 0
	for _, item := range items {
		size += u.writer.ItemSize(item)
	}
	body = u.writer.AppendListHeader(body, meta, len(items), size)
	for i, item := range items {
		body = append(u.writer.AppendItemHeader(body, i, item), item...)
	}
	return u.writer.AppendListFooter(body, meta, len(items))
}

// watch responds with a stream.
func (u *upstream) watch(ctx context.Context, query url.Values) *http.Response {
	u.mu.Lock()
	defer u.mu.Unlock()
	after, _ := strconv.ParseInt(query.Get("resourceVersion"), 10, 64)
	if after < u.compacted {
		return u.status(http.StatusGone, metav1.StatusReasonExpired)
	}
	seconds, _ := strconv.Atoi(query.Get("timeoutSeconds"))
	body, to := io.Pipe()
	u.opened++
	w := &watchConnection{upstream: u, position: after, cuts: u.cuts, bookmarks: u.bookmarks, to: to,
		ends: time.Duration(seconds) * time.Second, lags: u.lagging == 0 || u.opened%u.lagging == 0}
	go w.run(ctx)
	return u.response(http.StatusOK, body)
}

// watchConnection is one open watch.
type watchConnection struct {
	*upstream
	position        int64
	cuts, bookmarks int
	to              *io.PipeWriter
	ends            time.Duration
	lags            bool
}

// seenLocked returns the revision up to which the watch sees the log.
func (w *watchConnection) seenLocked() int64 {
	if w.lags && w.served != 0 {
		return w.served
	}
	return w.revision
}

func (w *watchConnection) run(ctx context.Context) {
	end, last := time.NewTimer(w.ends), time.NewTimer(max(w.ends-2*time.Second, 0))
	defer end.Stop()
	defer last.Stop()
	for {
		frames, wait, ended := w.next()
		var err error
		for _, frame := range frames {
			if _, err = w.to.Write(frame); err != nil {
				break
			}
		}
		if err != nil || ended {
			_ = w.to.CloseWithError(cmp.Or(err, io.EOF))
			return
		}
		if len(frames) > 0 {
			continue
		}
		select {
		case <-wait:
		case <-last.C:
			w.sendBookmark()
		case <-end.C:
			_ = w.to.Close()
			return
		case <-ctx.Done():
			_ = w.to.CloseWithError(ctx.Err())
			return
		}
	}
}

// next returns the frames of the next revision that is due, or a channel to wait on.
func (w *watchConnection) next() (frames [][]byte, wait <-chan struct{}, ended bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cuts != w.upstream.cuts {
		return nil, nil, true
	}
	seen := w.seenLocked()
	for _, c := range w.log {
		if c.revision <= w.position || c.revision > seen || len(frames) > 0 && c.revision != w.position+1 {
			continue
		}
		w.position = c.revision - 1 // of this revision only
		event := "MODIFIED"
		switch {
		case c.data == "":
			event = "DELETED"
		case c.created:
			event = "ADDED"
		}
		frames = append(frames, w.writer.AppendFrame(nil, event, w.item(c)))
	}
	if len(frames) > 0 {
		w.position++
		return frames, nil, false
	}
	w.position = max(w.position, seen)
	if w.bookmarks != w.upstream.bookmarks {
		w.bookmarks = w.upstream.bookmarks
		return [][]byte{w.frameBookmarkLocked()}, nil, false
	}
	return nil, w.changed, false
}

func (w *watchConnection) frameBookmarkLocked() []byte {
	return w.writer.AppendFrame(nil, "BOOKMARK", w.item(change{revision: w.seenLocked()}))
}

// sendBookmark sends the bookmark before the end, unless there is more to send.
func (w *watchConnection) sendBookmark() {
	w.mu.Lock()
	isDue, frame := w.position >= w.seenLocked(), w.frameBookmarkLocked()
	w.mu.Unlock()
	if isDue {
		_, _ = w.to.Write(frame)
	}
}

// inBothEncodings runs a test with an upstream that has ConfigMaps in protobuf, and with one that has them in JSON.
func inBothEncodings(t *testing.T, test func(t *testing.T, u *upstream, store *relay.Store)) {
	t.Helper()
	for encoding, isProtobuf := range map[string]bool{"protobuf": true, "JSON": false} {
		t.Run(encoding, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				u := newUpstream("configmaps", isProtobuf)
				test(t, u, u.open(t))
			})
		})
	}
}

// open runs a store of the upstream until the test ends.
func (u *upstream) open(t testing.TB) *relay.Store {
	t.Helper()
	store := u.newStore()
	kvtest.RunUntilEnd(t, store.Run)
	return store
}

func (u *upstream) newStore() *relay.Store {
	return relay.NewStore(relay.StoreConfig{
		Client: u.client, Base: u.base,
		Resource: schema.GroupVersionResource{Version: "v1", Resource: u.resource}, Kind: "ConfigMap", Namespaced: true,
		Protobuf: u.protobuf, Redefined: u.redefined, Prefix: prefix, Loaded: func(bool, int64) {}, Logger: slog.New(slog.DiscardHandler),
	})
}

// text renders the events of a response.
func text(response kv.WatchResponse) string {
	var out strings.Builder
	for _, batch := range response.Batches {
		fmt.Fprintf(&out, "%d[", batch.Revision)
		for i, e := range batch.Events {
			if i > 0 {
				out.WriteString(" ")
			}
			fmt.Fprintf(&out, "%v %s", e.Kind, strings.TrimPrefix(e.Key, prefix))
		}
		out.WriteString("] ")
	}
	if response.Err != nil {
		return out.String() + response.Err.Error()
	}
	return out.String() + strconv.FormatInt(response.Progress, 10)
}
