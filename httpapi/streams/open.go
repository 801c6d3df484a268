package streams

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/negotiate"
	"github.com/larder-io/larder/httpapi/reads"
	"github.com/larder-io/larder/internal/flow"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/storage"
	"github.com/larder-io/larder/watch"
)

// WatchRequest is a WATCH to open.
type WatchRequest struct {
	*reads.Read

	Flow *flow.Control // may be nil

	// Attributes returns the attributes of the tracing span of a watch that lists first.
	Attributes func() []attribute.KeyValue

	// MinRequestTimeout is the minimum duration of a watch without timeoutSeconds. RequestTimeout limits opening it.
	MinRequestTimeout, RequestTimeout time.Duration

	// Join returns the right that the watch depends on; nil if it depends on none.
	Join func() Right
}

// Watch serves a WATCH of r: apiserver pkg/endpoints/handlers/get.go and watch.go.
func (ss *Streams) Watch(x WatchRequest, r *reads.Resource) {
	f, ok := x.Negotiate(r)
	if !ok {
		x.ObserveRefused(r)
		return
	}
	ws, err := x.openWatch(r, f)
	if err != nil {
		x.Fail(err)
		x.Audit.RecordStatus(x.StatusCode()) // before Observe annotates deprecated versions, as in upstream
		x.Observe(r, len(x.Bytes))
		return
	}
	x.Audit.RecordStatus(http.StatusOK)
	ws.observer.audit, ws.seat = x.TakeAudit(), x.TakeSeat()
	ws.account.Store(x.Account)
	ws.faults = x.Faults.Watch(ws.wake)
	if x.Flow != nil {
		ws.unregister = x.Flow.RegisterWatch(x.RequestInfo(), x.Query.Encode())
	}
	ws.right = x.Join()
	ws.observer.line, ws.observer.seated = x.Line(), x.Seated
	if ws.watchList && x.Traced() {
		x.Streaming(streamType(f), x.VersionOf(f))
		ws.observer.spans = x.KeepSpans(2)
	}
	to := x.StartStream(http.StatusOK, x.header(f))
	ws.head, ws.chunked, ws.end, ws.next = to.Head, to.Chunked, to.End, to.Next
	ss.begin(ws, to.Conn, to.Left)
}

// lengthPrefix is the size of the length before each protobuf frame, in bytes.
const lengthPrefix = 4

// openWatch makes everything that a watch needs after its request has ended. Like upstream, it opens the
// watch before it checks the format of the events.
func (x WatchRequest) openWatch(r *reads.Resource, f negotiate.Format) (*watchStream, error) {
	o, err := x.ValidListOptions(r)
	if err != nil {
		return nil, err
	}
	shard, err := storage.ParseShard(o.ShardSelector)
	if err != nil {
		return nil, err
	}
	scope := x.ScopeOf(r, o)
	ws := &watchStream{
		encoder: r.View.Encoder(f.Encoding(), f.Projection()),
		observer: observer{
			began:   x.Received,
			open:    r.Monitors.Of("watch", reads.ListScope(scope)),
			sent:    x.Monitor(r),
			counted: x.Counted(r, 0),
		},
		skipInitialEnd: o.SendInitialEvents == nil,
		bookmarks:      o.AllowWatchBookmarks,
		ends:           x.Received.Add(x.watchTimeout(o)),
	}
	if f.MediaType == runtime.ContentTypeProtobuf {
		ws.observer.prefix = lengthPrefix
	}
	if ws.watchList = o.SendInitialEvents != nil && *o.SendInitialEvents && o.AllowWatchBookmarks; ws.watchList && x.Traced() {
		x.Enter("WatchList", x.Attributes()...)
	}
	x.EnterCache("cacher.Watch")
	defer x.Leave()
	began := time.Now()
	ctx, cancel := context.WithTimeout(x.Base(), min(x.RequestTimeout, ws.ends.Sub(began)))
	defer cancel()
	defer func() { x.Waited += time.Since(began) }() // opening takes time only if the cache must catch up
	past := int64(0)
	if o.SendInitialEvents != nil && *o.SendInitialEvents {
		past = x.FaultRevision(r, o.ResourceVersion)
	}
	ws.watcher, err = r.View.Resource.Watch(ctx, storage.WatchRequest{
		Past: past, Scope: scope, ResourceVersion: o.ResourceVersion, SendInitialEvents: o.SendInitialEvents,
		Bookmarks: o.AllowWatchBookmarks, Label: o.LabelSelector, Field: o.FieldSelector, Shard: shard,
		Wake: ws.wake,
	})
	var inStream *storage.StreamError
	if errors.As(err, &inStream) {
		ws.openErr = inStream.Err
	} else if err != nil {
		return nil, x.ReadError(r, err)
	}
	if err := ws.setFormat(x, r, f); err != nil {
		if ws.watcher != nil {
			ws.watcher.Close()
		}
		return nil, err
	}
	return ws, nil
}

// setFormat sets the format of the events. It rejects formats that cannot be streamed.
func (ws *watchStream) setFormat(x WatchRequest, r *reads.Resource, f negotiate.Format) error {
	options, err := f.TableOptions(x.Query)
	if err != nil {
		return err
	}
	if !f.Streams {
		_, media := negotiation.MediaTypesForSerializer(r.Scope.Serializer)
		return negotiation.NewNotAcceptableError(media)
	}
	if options != nil {
		ws.table = &tableStream{view: r.View, options: options, version: f.Convert.GroupVersion()}
	}
	if f.Convert != nil && f.Convert.Kind == "PartialObjectMetadataList" {
		ws.unencodable = true
	}
	return nil
}

// watchTimeout returns the duration of the watch.
func (x WatchRequest) watchTimeout(o *internalversion.ListOptions) time.Duration {
	if o.TimeoutSeconds != nil {
		if timeout := time.Duration(*o.TimeoutSeconds) * time.Second; timeout != 0 { // the product may overflow to 0
			return timeout
		}
	}
	return time.Duration(float64(x.MinRequestTimeout) * (1 + rand.Float64()))
}

// streamType is the media type of the frames of a watch.
func streamType(f negotiate.Format) string {
	if f.MediaType == runtime.ContentTypeJSON {
		return f.MediaType
	}
	return f.MediaType + ";stream=watch"
}

// header returns the header of the response, with the fields of flow control and CORS, in upstream's order.
func (x WatchRequest) header(f negotiate.Format) []exchange.Field {
	x.Set("Content-Type", streamType(f))
	slices.SortStableFunc(x.Header, func(a, b exchange.Field) int { return strings.Compare(a.Name, b.Name) })
	return x.Header
}

// tableStream makes the frames of Tables for one watcher: only its first frame has the column definitions.
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
	encoder := reads.TableEncoder(t.version)
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
	ctx := context.Background() // printers do not use it
	switch d.Type {
	case watch.Bookmark, watch.InitialEnd:
		return t.view.TableOfBookmark(ctx, d.Revision, d.Type == watch.InitialEnd, t.options, t.version)
	case watch.Deleted:
		return t.view.TableOf(ctx, d.Object, d.Revision, t.options, t.version)
	default:
		return t.view.TableOf(ctx, d.Object, 0, t.options, t.version)
	}
}
