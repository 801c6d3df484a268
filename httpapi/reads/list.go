package reads

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apistorage "k8s.io/apiserver/pkg/storage"
	storeerrors "k8s.io/apiserver/pkg/storage/errors"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/negotiate"
	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/internal/registry/storage"
	"github.com/larder-io/larder/internal/registry/table"
	"github.com/larder-io/larder/internal/registry/wire"
)

// list serves a LIST: apiserver pkg/endpoints/handlers/get.go, ListResource.
func (x *Read) list(r *Resource) {
	f, ok := x.Negotiate(r)
	if !ok {
		x.ObserveRefused(r)
		return
	}
	o, err := x.ValidListOptions(r)
	if err == nil {
		err = x.sendListing(r, f, o)
	}
	if err != nil {
		x.Fail(err)
	}
	if x.Length() != exchange.UnknownSize {
		x.Observe(r, x.Length())
	}
}

// ListScope returns the scope of a list in metrics.
func ListScope(scope storage.Scope) string {
	switch {
	case scope.Name != "":
		return "resource"
	case scope.Namespace != "":
		return "namespace"
	default:
		return "cluster"
	}
}

// sendListing sends the objects that o selects. After an error nothing was sent.
func (x *Read) sendListing(r *Resource, f negotiate.Format, o *internalversion.ListOptions) error {
	shard, err := storage.ParseShard(o.ShardSelector)
	if err != nil {
		return err
	}
	past := x.listFaultRevision(r, o)
	x.EnterCache("cacher.GetList")
	body := lists.Get().(*listBody)
	listing, err := r.View.Resource.List(x.Audit.Context(x.Base()), storage.ListRequest{
		Scope: x.ScopeOf(r, o), ResourceVersion: o.ResourceVersion, Match: o.ResourceVersionMatch,
		Label: o.LabelSelector, Field: o.FieldSelector, Shard: shard, Limit: o.Limit, Continue: o.Continue,
		Past: past, Waited: &x.Waited,
	}, body.objects[:0])
	x.Leave()
	if err != nil {
		body.Close()
		return storeerrors.InterpretListError(x.ReadError(r, err), x.groupResource())
	}
	body.objects, body.converts = listing.Objects, r.View.ConvertsAny(listing.Objects)
	x.Serializing(f.MediaType, x.VersionOf(f))
	if f.Convert != nil {
		listing.Meta.Shard = "" // as in upstream: only lists of whole objects have it
	}
	if shard == nil && !body.converts && x.stitches(f, o, listing) {
		if sent, err := x.sendStitched(r, f, listing); sent || err != nil {
			body.Close()
			return err
		}
	}
	taken, err := x.sendList(x.Base(), r, f, listing, body)
	if !taken {
		body.Close()
	}
	return x.ReadError(r, err)
}

// FaultRevision returns the old revision at which a fault makes a read that accepts any revision from resourceVersion
// on be served; 0 without such a fault.
func (x *Read) FaultRevision(r *Resource, resourceVersion string) int64 {
	if x.Faults == nil || resourceVersion == "" || !r.View.Resource.MayBeStale() {
		return 0
	}
	if x.Faults.Seeded() {
		_ = r.View.Resource.CatchUp(x.Base()) // the read may have the same error
	}
	return x.Faults.Past(r.View.Resource.Cache, resourceVersion)
}

// listFaultRevision is FaultRevision for a list. It returns 0 for a list that does not accept every revision from
// o.ResourceVersion on.
func (x *Read) listFaultRevision(r *Resource, o *internalversion.ListOptions) int64 {
	atLeast := o.ResourceVersion == "0" || o.ResourceVersionMatch == metav1.ResourceVersionMatchNotOlderThan || o.ResourceVersionMatch == "" && o.Limit == 0
	if !atLeast || o.Continue != "" {
		return 0
	}
	return x.FaultRevision(r, o.ResourceVersion)
}

// EnterCache begins the span of a list or watch in the cache, if x is traced.
func (x *Read) EnterCache(name string) {
	if x.Traced() {
		x.Enter(name, attribute.String("audit-id", x.AuditID), attribute.Stringer("type", x.groupResource()))
	}
}

// sendList sends a listing. taken says that the response has taken ownership of body.
func (x *Read) sendList(ctx context.Context, r *Resource, f negotiate.Format, listing storage.Listing, body *listBody) (taken bool, err error) {
	if f.IsTable() {
		options, err := f.TableOptions(x.Query)
		if err != nil {
			return false, err
		}
		if f.Encoding() == encoding.JSON && !body.converts {
			rows, err := r.View.Rows(ctx, listing.Objects, listing.Meta, options, f.Convert.GroupVersion())
			if err != nil {
				return false, err
			}
			if rows != nil {
				return x.sendRows(r, f, rows, body)
			}
		}
		table, err := r.View.Table(ctx, listing.Objects, listing.Meta, options, f.Convert.GroupVersion())
		if err != nil {
			return false, err
		}
		whole, err := encodeTable(f, table)
		if err == nil && x.sendWhole(r, f, len(whole), bytesBody(whole)) {
			x.HeldBytes = len(whole)
		}
		return false, err
	}
	if f.Convert != nil && f.Convert.Kind == "PartialObjectMetadata" {
		return false, negotiate.NotAcceptable(fmt.Sprintf("you requested PartialObjectMetadata, but the requested object is a list (%T)", newList(r)))
	}
	if err := body.fill(ctx, r.View.Encoder(f.Encoding(), f.Projection()), listing.Meta, x.Carrier.Chunks()); err != nil {
		return false, err
	}
	if taken = x.sendWhole(r, f, body.size, body); taken && body.converts {
		x.HeldBytes = body.own
	}
	return taken, nil
}

// sendRows is sendList for a table of cached rows. A large table is streamed if some metadata are not cached.
func (x *Read) sendRows(r *Resource, f negotiate.Format, rows *table.Rows, body *listBody) (taken bool, err error) {
	size := exchange.UnknownSize
	if !x.Carrier.Chunks() || encoding.BodyBytes(body.objects) < streamFrom || rows.Cached() {
		if size, err = rows.Size(); err != nil {
			return false, err
		}
	}
	return x.sendWhole(r, f, size, &tableBody{rows, body}), nil
}

// sendWhole sends the size bytes that body writes, converted or compressed if f or the client asks for that. A large body
// that is not sent as it is, or one of unknown size, is streamed, so that a slow client does not keep a copy in memory.
// sendWhole reports whether the response has taken ownership of body.
func (x *Read) sendWhole(r *Resource, f negotiate.Format, size int, body exchange.Body) bool {
	changed := f.Rewritten() || x.Compresses(size)
	switch {
	case size == exchange.UnknownSize || size >= streamFrom && changed && x.Carrier.Chunks():
		return x.sendStreamed(r, f, body)
	case f.Rewritten():
		whole := bytes.NewBuffer(make([]byte, 0, size+size/2))
		if err := writeThrough(rewriter(f)(whole), body); err != nil {
			x.FailEncoding(err, f.MediaType)
			return false
		}
		x.SendCompressed(http.StatusOK, f.MediaType, whole.Bytes())
		return false
	case x.Compresses(size):
		x.SendGzip(http.StatusOK, f.MediaType, size, body)
		return false
	}
	x.SendFrom(http.StatusOK, f.MediaType, size, body)
	return true
}

// sendStreamed sends a large list, which body writes while it is sent. It sends an error and returns false if the list
// has a string that cannot be YAML, or the request ends before that is known.
func (x *Read) sendStreamed(r *Resource, f negotiate.Format, body exchange.Body) bool {
	if f.MediaType == runtime.ContentTypeYAML {
		err := writeThrough(&endingFilter{wire.NewYAMLWriter(io.Discard), x.Base()}, body)
		switch {
		case apistorage.IsRequestTimeout(err):
			x.Fail(x.ReadError(r, err))
			return false
		case err != nil:
			x.FailEncoding(err, f.MediaType)
			return false
		}
	}
	if f.Rewritten() {
		body = filteredBody{body, rewriter(f)}
	}
	if exchange.AcceptsGzip(x.Peek("Accept-Encoding")) {
		x.Compressed()
		body = filteredBody{body, exchange.NewGzip}
	}
	x.sendObserved(r, f, body)
	return true
}

// sendObserved sends body, whose size is known only at its end.
func (x *Read) sendObserved(r *Resource, f negotiate.Format, body exchange.Body) {
	x.SendFrom(http.StatusOK, f.MediaType, exchange.UnknownSize, &observedBody{Body: body, read: x, resource: r})
}

// observedBody is a body of unknown size. When it is closed, its read is observed with the bytes sent.
type observedBody struct {
	exchange.Body
	read     *Read
	resource *Resource
	sent     int64
}

func (b *observedBody) WriteTo(w io.Writer) (n int64, err error) {
	b.sent, err = b.Body.WriteTo(w)
	return b.sent, err
}

func (b *observedBody) Close() error {
	b.read.Observe(b.resource, int(b.sent))
	return b.Body.Close()
}

// tableBody writes a table. It owns list, which holds the objects in it.
type tableBody struct {
	rows *table.Rows
	list *listBody
}

func (b *tableBody) WriteTo(w io.Writer) (int64, error) {
	out := exchange.NewChunkWriter(w)
	defer out.Release()
	if err := b.rows.Write(out.Add); err != nil {
		return out.Written, err
	}
	out.Flush()
	return out.Written, out.Err
}

func (b *tableBody) Close() error { return b.list.Close() }

// bytesBody writes JSON in pieces, so that a filter need not keep it.
type bytesBody []byte

func (b bytesBody) WriteTo(w io.Writer) (int64, error) {
	return io.Copy(w, struct{ io.Reader }{bytes.NewReader(b)})
}

func (b bytesBody) Close() error { return nil }

// stitches reports whether the compressed pieces of a listing are worth caching. The listing must cover a whole
// resource or namespace, in an encoding that is cached.
func (x *Read) stitches(f negotiate.Format, o *internalversion.ListOptions, listing storage.Listing) bool {
	whole := x.Name == "" && o.Continue == "" && listing.Meta.Continue == "" &&
		(o.LabelSelector == nil || o.LabelSelector.Empty()) && (o.FieldSelector == nil || o.FieldSelector.Empty())
	list := f.Convert == nil || f.Convert.Kind == "PartialObjectMetadataList"
	return whole && list && !f.Rewritten() && exchange.AcceptsGzip(x.Peek("Accept-Encoding"))
}

// sendStitched sends a listing that is stitched from compressed pieces. It returns false for one that is too small to be
// compressed, or too large for a client that needs to know its length.
func (x *Read) sendStitched(r *Resource, f negotiate.Format, listing storage.Listing) (bool, error) {
	body, err := x.Stitcher.stitch(r.View.Encoder(f.Encoding(), f.Projection()), listing.Meta, listing.Objects)
	if err != nil || body == nil || body.size <= exchange.CompressFrom {
		return false, err
	}
	if body.length == exchange.UnknownSize && !x.Carrier.Chunks() {
		return false, nil
	}
	x.Compressed()
	if body.length == exchange.UnknownSize {
		x.sendObserved(r, f, body)
	} else {
		x.SendFrom(http.StatusOK, f.MediaType, body.length, body)
	}
	return true, nil
}

func newList(r *Resource) any {
	if l, ok := r.Endpoint.Storage.(interface{ NewList() runtime.Object }); ok {
		return l.NewList()
	}
	return nil
}

// listBody writes a list. It comes from a pool and returns to it when closed.
type listBody struct {
	encoder *encoding.Encoder
	meta    wire.ListMeta
	objects []*cache.Object
	source  encoding.ItemSource
	sum     int // of the items' sizes
	own     int // bytes of converted items that are not cached
	size    int // of the body, or UnknownSize

	// converts says that a webhook may have to make an item. It may fail, or return something else the next time, so
	// fill makes all items.
	converts bool
	items    [][]byte // of all objects; nil without converts
}

var lists = sync.Pool{New: func() any { return new(listBody) }}

const (
	// keepObjects bounds the objects of a listBody in the pool.
	keepObjects = 1 << 15
	// streamFrom is the minimum size of canonical encodings of a list that is sent while it is encoded. A list of that
	// size is large enough to be compressed.
	streamFrom = 4 * exchange.CompressFrom
)

// fill finds the size of the body. With stream, a large JSON list is streamed unless all items are cached or converts
// is set, so that items are not encoded twice. Unreadable objects fail here, before the first byte is sent.
func (b *listBody) fill(ctx context.Context, encoder *encoding.Encoder, meta wire.ListMeta, stream bool) error {
	b.encoder, b.meta, b.source, b.sum, b.own = encoder, meta, encoder.Source(b.objects), 0, 0
	if stream && !b.converts && encoder.MediaType == encoding.JSON && encoding.BodyBytes(b.objects) >= streamFrom && !b.allCached() {
		b.size = exchange.UnknownSize
		return readable(b.objects)
	}
	for _, o := range b.objects {
		if size, ok := encoder.PackedSize(o); ok && !b.converts {
			b.sum += size
			continue
		}
		if b.converts && ctx.Err() != nil {
			return apistorage.NewTimeoutError(o.Key(), "request did not complete within requested timeout")
		}
		item, err := b.source.Item(ctx, o)
		if err != nil {
			return err
		}
		if b.converts {
			b.items = append(b.items, item)
			if _, shared := b.source.Cached(o); !shared {
				b.own += len(item)
			}
		}
		b.sum += encoder.ItemSize(item)
	}
	b.size = encoder.ListSize(meta, len(b.objects), b.sum)
	return nil
}

// allCached reports whether all items are cached.
func (b *listBody) allCached() bool {
	for _, o := range b.objects {
		if _, ok := b.encoder.PackedSize(o); ok {
			continue
		}
		if _, ok := b.source.Cached(o); !ok {
			return false
		}
	}
	return true
}

// readable returns the error of the first unreadable object, nil if there is none.
func readable(objects []*cache.Object) error {
	for _, o := range objects {
		if o.Err() != nil {
			return o.Err()
		}
	}
	return nil
}

func (b *listBody) WriteTo(w io.Writer) (int64, error) {
	out := exchange.NewChunkWriter(w)
	defer out.Release()
	out.Buf = b.encoder.AppendListHeader(out.Buf, b.meta, len(b.objects), b.sum)
	if err := b.writeItems(out); err != nil {
		return out.Written, err
	}
	out.Buf = b.encoder.AppendListFooter(out.Buf, b.meta, len(b.objects))
	out.Flush()
	return out.Written, out.Err
}

// writeItems writes the items. It encodes or unpacks JSON that is not cached into the chunk that is sent.
func (b *listBody) writeItems(out *exchange.ChunkWriter) error {
	for i, o := range b.objects {
		item, err := b.item(i, o)
		if err != nil {
			return err
		}
		out.Buf = b.encoder.AppendItemHeader(out.Buf, i, item)
		if item == nil {
			if item, out.Buf, err = b.source.Next(out.Buf, o); err != nil {
				return err
			}
		}
		if out.Add(item); out.Err != nil {
			return out.Err
		}
	}
	return nil
}

// item returns the item of the i-th object. It returns nil for JSON, whose header does not depend on the item, unless
// fill has made the item for converts. Other items come from the cache again, so that slow clients do not keep items in
// memory that the cache has dropped.
func (b *listBody) item(i int, o *cache.Object) ([]byte, error) {
	switch {
	case b.converts:
		return b.items[i], nil
	case b.encoder.MediaType == encoding.JSON:
		return nil, nil
	}
	return b.source.Item(context.Background(), o)
}

// Close returns b to the pool.
func (b *listBody) Close() error {
	clear(b.objects[:cap(b.objects)])
	if cap(b.objects) > keepObjects {
		b.objects = nil
	}
	*b = listBody{objects: b.objects[:0]}
	lists.Put(b)
	return nil
}

// filteredBody writes what body writes through a filter.
type filteredBody struct {
	exchange.Body
	filter func(w io.Writer) io.WriteCloser
}

func (b filteredBody) WriteTo(w io.Writer) (int64, error) {
	out := exchange.NewChunkWriter(w)
	defer out.Release()
	if err := writeThrough(b.filter(out), b.Body); err != nil {
		return out.Written, err
	}
	out.Flush()
	return out.Written, out.Err
}

// endingFilter is a filter that fails once ctx has ended.
type endingFilter struct {
	io.WriteCloser
	ctx context.Context
}

func (f *endingFilter) Write(p []byte) (int, error) {
	if f.ctx.Err() != nil {
		return 0, apistorage.NewTimeoutError("", "request did not complete within requested timeout")
	}
	return f.WriteCloser.Write(p)
}

// writeThrough writes body to filter and closes filter.
func writeThrough(filter io.WriteCloser, body exchange.Body) error {
	_, err := body.WriteTo(filter)
	return cmp.Or(err, filter.Close())
}

// rewriter returns the filter that makes f of JSON. f is rewritten.
func rewriter(f negotiate.Format) func(w io.Writer) io.WriteCloser {
	if f.MediaType == runtime.ContentTypeYAML {
		return wire.NewYAMLWriter
	}
	return wire.NewIndenter
}
