package registry

import (
	"encoding/json"
	"fmt"
	"reflect"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry/wire"
)

// MediaType is what bytes are written in. YAML is made from JSON bodies with
// [wire.YAML], pretty-printed JSON with [wire.Pretty].
type MediaType uint8

// The media types that forms are kept in.
const (
	JSON MediaType = iota
	Protobuf
)

// Shape is how much of an object a reader asked for.
type Shape uint8

// The shapes that forms have. Tables are made by [View.Rows] and [View.Table].
const (
	Full           Shape = iota
	Partial              // PartialObjectMetadata of meta.k8s.io/v1
	PartialV1beta1       // PartialObjectMetadata of meta.k8s.io/v1beta1
)

const (
	mediaTypes = 2
	shapes     = 3
)

// View is one served version of a Resource. It is immutable.
type View struct {
	Resource *Resource
	GVK      schema.GroupVersionKind
	ListKind string

	table rest.TableConvertor
	forms [mediaTypes][shapes]*Form
	rowID FormID
	times func() *timeFinder // of its items
}

// addView adds a version to those that r is served in. table prints its objects.
// Views are added before the Resource runs.
func (r *Resource) addView(gvk schema.GroupVersionKind, table rest.TableConvertor) (*View, error) {
	base := firstViewForm + r.views*viewForms
	if base+viewForms > maxForms {
		return nil, fmt.Errorf("%s is served in too many versions", r.GroupResource)
	}
	r.views++
	v := &View{Resource: r, GVK: gvk, ListKind: gvk.Kind + "List", table: table, rowID: FormID(base + mediaTypes)}
	v.times = sync.OnceValue(func() *timeFinder { return newTimeFinder(r.codec.newListFunc()) })
	for media := range MediaType(mediaTypes) {
		for shape := range Shape(shapes) {
			v.forms[media][shape] = v.newForm(media, shape, base)
		}
	}
	return v, nil
}

// newView adds a version that storage serves: its printer makes the tables, and
// what it does to every object that it reads is done once, when an object enters
// the cache.
func (r *Resource) newView(gvk schema.GroupVersionKind, storage rest.Storage) (*View, error) {
	table, ok := storage.(rest.TableConvertor)
	if !ok {
		return nil, fmt.Errorf("storage %T of %s makes no tables", storage, r.GroupResource)
	}
	if decorate := decoratorOf(storage); decorate != nil {
		r.codec.decorate = decorate
	}
	return r.addView(gvk, table)
}

// decoratorOf finds the function by which a storage completes what it read, nil for
// most. Upstream keeps it in the generic store that its storages embed.
func decoratorOf(storage rest.Storage) func(runtime.Object) {
	v := reflect.Indirect(reflect.ValueOf(storage))
	if v.Kind() != reflect.Struct {
		return nil
	}
	field := v.FieldByName("Store")
	if !field.IsValid() || !field.CanInterface() {
		return nil
	}
	if store, ok := field.Interface().(*genericregistry.Store); ok && store != nil {
		return store.Decorator
	}
	return nil
}

// Form returns the way in which objects leave in media and shape.
func (v *View) Form(media MediaType, shape Shape) *Form { return v.forms[media][shape] }

// FormID tells the forms of one Resource apart. Views share the forms of
// PartialObjectMetadata, which are the same in every version.
type FormID = uint8

const (
	canonicalForm = 0
	partialForms  = 1 // media and shape of PartialObjectMetadata follow
	firstViewForm = partialForms + mediaTypes*(shapes-1)
	viewForms     = mediaTypes + 1 // and the rows of tables
	maxForms      = 1 << 8
)

// Form is one way in which objects leave: a version, a media type and a shape.
// Its Writer puts heads, lists and frames around items; the rest of it gets items
// from objects. Items are shared by all responses and never written to.
type Form struct {
	wire.Writer

	view  *View
	media MediaType
	shape Shape
	id    FormID

	mu        sync.Mutex
	bookmarks [2][]byte // items, by whether they end the initial events; guarded by mu
}

func (v *View) newForm(media MediaType, shape Shape, base int) *Form {
	f := &Form{view: v, media: media, shape: shape, id: FormID(base + int(media))}
	kind := wire.Kind{APIVersion: v.GVK.GroupVersion().String(), Kind: v.GVK.Kind, ListKind: v.ListKind}
	if shape != Full {
		f.id = FormID(partialForms + int(media)*(shapes-1) + int(shape-Partial))
		kind = partialKind(shape)
	}
	if media == Protobuf {
		f.Writer = wire.Protobuf(kind)
	} else {
		f.Writer = wire.JSON(kind)
	}
	return f
}

// partialKind describes lists of PartialObjectMetadata: upstream builds them from
// a nil slice, so that an empty one has null for its items, and gives each item
// its kind (apiserver pkg/endpoints/handlers/response.go).
func partialKind(shape Shape) wire.Kind {
	kind := wire.Kind{
		APIVersion: metav1.SchemeGroupVersion.String(),
		Kind:       "PartialObjectMetadata",
		ListKind:   "PartialObjectMetadataList",
		Typed:      true,
		NullItems:  true,
	}
	if shape == PartialV1beta1 {
		kind.APIVersion, kind.ItemsFirst = metav1beta1.SchemeGroupVersion.String(), true
	}
	return kind
}

// ID tells f apart from the other forms of its Resource, for frames that are
// shared by event and form.
func (f *Form) ID() FormID { return f.id }

// MediaType returns the media type of f.
func (f *Form) MediaType() MediaType { return f.media }

// Item returns o as an item in this form. The bytes are shared.
func (f *Form) Item(o *cache.Object) ([]byte, error) {
	if o.Err() != nil {
		return nil, o.Err()
	}
	if f.Sliced() {
		return f.slice(o.Body())
	}
	return o.Encoding(cache.EncodingID(f.id), f.encode)
}

// Sliced reports whether items are parts of the canonical bytes: they cost nothing to
// make and no memory beside the object's.
func (f *Form) Sliced() bool {
	if f.shape == Full {
		return f.media == Protobuf && f.canonical()
	}
	return f.media == Protobuf && !f.view.Resource.codec.splitMetadata
}

func (f *Form) slice(body []byte) ([]byte, error) {
	if f.shape == Full {
		return body, nil
	}
	return wire.PartialProtobuf(body)
}

// Ahead is how many items it pays to ask for at once before they are written.
const Ahead = 32

// Source gives items of a list of objects. It is Item where there is room to keep all of them. Where not,
// keeping one would drive out another of the same list: as many as fit are kept,
// always the same, and the others are made for the caller alone.
func (f *Form) Source(objects []*cache.Object) func(*cache.Object) ([]byte, error) {
	const (
		encoded, canonical = 3, 2 // JSON is about half as large again
		parts              = 1 << 16
	)
	limit := f.view.Resource.schema.Budget().Limit()
	if f.Sliced() || limit <= 0 {
		return f.Item
	}
	need := estimate(objects, f.canonicalSize) / canonical * encoded
	if need <= limit {
		return f.Item
	}
	fit := uint64(float64(limit) / float64(need) * parts * 7 / 8)
	return func(o *cache.Object) ([]byte, error) {
		// Revisions are as good as at random when multiplied (Knuth's way to hash).
		if uint64(o.Revision())*0x9e3779b97f4a7c15>>48 < fit {
			return f.Item(o)
		}
		return f.pass(o)
	}
}

// pass is Item that keeps nothing.
func (f *Form) pass(o *cache.Object) ([]byte, error) {
	if item, ok := o.Kept(cache.EncodingID(f.id)); ok || o.Err() != nil {
		return item, o.Err()
	}
	return f.encode(o)
}

// canonicalSize is the size of the canonical bytes that the item of o is made of.
func (f *Form) canonicalSize(o *cache.Object) int {
	if f.shape != Full {
		if part, err := wire.PartialProtobuf(o.Body()); err == nil {
			return len(part)
		}
	}
	return len(o.Body())
}

// BodyBytes estimates the size of the canonical encodings of objects.
func BodyBytes(objects []*cache.Object) int64 {
	return estimate(objects, func(o *cache.Object) int { return len(o.Body()) })
}

// estimate sums up the sizes of objects from those of a few.
func estimate(objects []*cache.Object, size func(*cache.Object) int) int64 {
	const samples = 64
	sum, n, step := 0, 0, max(1, len(objects)/samples)
	for i := 0; i < len(objects); i += step {
		sum += size(objects[i])
		n++
	}
	return int64(sum) * int64(len(objects)) / int64(max(1, n))
}

// ItemAt returns o as an item with revision in place of its own, as a DELETED
// event shows it. The bytes are shared only if the revisions are equal.
func (f *Form) ItemAt(o *cache.Object, revision int64) ([]byte, error) {
	item, err := f.Item(o)
	if err != nil || revision == o.Revision() {
		return item, err
	}
	return f.AppendRevision(make([]byte, 0, len(item)+20), item, revision)
}

func (f *Form) canonical() bool {
	return f.view.GVK.GroupVersion() == f.view.Resource.codec.canonical.GroupVersion()
}

// encode makes the item of o in this form from its canonical bytes.
func (f *Form) encode(o *cache.Object) ([]byte, error) {
	c := f.view.Resource.codec
	switch {
	case f.shape == Full:
		obj, err := c.as(o.Body(), f.view.GVK.GroupVersion())
		if err != nil {
			return nil, err
		}
		return f.marshal(obj)
	case c.splitMetadata:
		obj := c.newFunc()
		if err := c.decode(o.Body(), obj); err != nil {
			return nil, err
		}
		return f.partialOf(obj)
	default:
		c.decodes.Add(1)
		return f.partial(o.Body())
	}
}

func (f *Form) marshal(obj runtime.Object) ([]byte, error) {
	if f.media == Protobuf {
		return marshal(obj)
	}
	return marshalJSON(obj)
}

// partial makes the JSON item of PartialObjectMetadata; only ObjectMeta is decoded.
func (f *Form) partial(body []byte) ([]byte, error) {
	raw, err := wire.ObjectMetaProtobuf(body)
	if err != nil {
		return nil, err
	}
	var m metav1.ObjectMeta
	if err := m.Unmarshal(raw); err != nil {
		return nil, fmt.Errorf("registry: decode metadata: %w", err)
	}
	return f.partialOf(&m)
}

// partialOf makes the item of PartialObjectMetadata of something with metadata.
func (f *Form) partialOf(obj any) ([]byte, error) {
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	partial, kind := meta.AsPartialObjectMetadata(accessor), partialKind(f.shape)
	partial.Kind, partial.APIVersion = kind.Kind, kind.APIVersion
	return f.marshal(partial)
}

// marshalJSON writes obj as encoding/json does.
func marshalJSON(obj any) ([]byte, error) {
	data, err := json.Marshal(obj)
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	return data, nil
}

// AppendBookmark appends a BOOKMARK event: an empty object of the kind that says
// nothing but revision, and whether the initial events have all been sent.
func (f *Form) AppendBookmark(dst []byte, revision int64, initialEnd bool) ([]byte, error) {
	item, err := f.bookmark(initialEnd)
	if err != nil {
		return dst, err
	}
	if item, err = f.AppendRevision(make([]byte, 0, len(item)+20), item, revision); err != nil {
		return dst, err
	}
	return f.AppendFrame(dst, "BOOKMARK", item), nil
}

// bookmark returns the item of a bookmark of some revision, made once.
func (f *Form) bookmark(initialEnd bool) ([]byte, error) {
	i := 0
	if initialEnd {
		i = 1
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.bookmarks[i] == nil {
		item, err := f.makeBookmark(initialEnd)
		if err != nil {
			return nil, err
		}
		f.bookmarks[i] = item
	}
	return f.bookmarks[i], nil
}

func (f *Form) makeBookmark(initialEnd bool) ([]byte, error) {
	c := f.view.Resource.codec
	obj, err := c.bookmark(1, initialEnd)
	if err != nil {
		return nil, err
	}
	if f.shape != Full {
		return f.partialOf(obj)
	}
	out, err := c.toVersion(obj, f.view.GVK.GroupVersion())
	if err != nil {
		return nil, err
	}
	return f.marshal(out)
}

// bookmark builds the object of a bookmark, decorated as upstream's is.
func (c *codec) bookmark(revision int64, initialEnd bool) (runtime.Object, error) {
	obj := c.newFunc()
	if err := c.setRevision(obj, revision); err != nil {
		return nil, err
	}
	if initialEnd {
		if err := storage.AnnotateInitialEventsEndBookmark(obj); err != nil {
			return nil, fmt.Errorf("registry: annotate bookmark: %w", err)
		}
	}
	if c.decorate != nil {
		c.decorate(obj)
	}
	return obj, nil
}

// AppendError appends an ERROR event that carries status.
func (f *Form) AppendError(dst []byte, status *metav1.Status) ([]byte, error) {
	kind := wire.Kind{APIVersion: "v1", Kind: "Status"}
	bare := *status
	bare.TypeMeta = metav1.TypeMeta{}
	item, err := f.marshal(&bare)
	if err != nil {
		return dst, err
	}
	if f.media == Protobuf {
		return wire.Protobuf(kind).AppendFrame(dst, "ERROR", item), nil
	}
	return wire.JSON(kind).AppendFrame(dst, "ERROR", item), nil
}
