package registry

import (
	"encoding/json"
	"fmt"
	"reflect"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"

	"github.com/larder-io/larder/internal/registry/transcode"
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

	custom  *version // nil for a kind with a Go type
	columns *Columns // likewise

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

// codec makes objects of the version that v serves.
func (v *View) codec() *codec {
	if v.custom != nil {
		return v.custom.codec
	}
	return v.Resource.codec
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
	plan  func() *transcode.Plan // makes items from canonical bytes; it returns nil if none does

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
	f.plan = sync.OnceValue(f.newPlan)
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

func (f *Form) canonical() bool {
	return f.view.GVK.GroupVersion() == f.view.Resource.codec.canonical.GroupVersion()
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
	c := f.view.codec()
	obj, err := c.bookmark(1, initialEnd)
	if err != nil {
		return nil, err
	}
	switch {
	case f.shape != Full:
		return f.partialOf(obj)
	case c.untyped:
		return c.encode(obj)
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
