package registry

import (
	"bytes"
	"fmt"
	"reflect"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/invariants"
	"github.com/larder-io/larder/internal/registry/transcode"
	"github.com/larder-io/larder/internal/registry/wire"
)

// newPlanner makes the plans of all built-in kinds. Their conversions to the canonical
// version and back change nothing of what it holds, but for kind and apiVersion of claim
// templates, which protobuf does not carry (kubernetes pkg/apis/apps/v1/conversion.go).
func newPlanner() *transcode.Planner {
	return transcode.NewPlanner(transcode.Typed{
		Owner: reflect.TypeFor[appsv1.StatefulSetSpec](),
		Field: "VolumeClaimTemplates",
		Kind:  corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"),
	})
}

// newPlan returns the plan by which f makes items, nil if it decodes objects to do so:
// whole ones of other schemes than the built-in one, of kinds that no plan can express,
// and of other versions than the canonical one.
func (f *Form) newPlan() *transcode.Plan {
	c := f.view.Resource.codec
	if f.media != JSON || f.view.custom != nil || c.planner == nil {
		return nil
	}
	t, kind := reflect.TypeFor[metav1.PartialObjectMetadata](), schema.GroupVersionKind{}
	switch {
	case f.shape != Full:
		partial := partialKind(f.shape)
		kind = schema.FromAPIVersionAndKind(partial.APIVersion, partial.Kind)
	case !f.canonical() || c.scheme != legacyscheme.Scheme:
		return nil
	default:
		obj, err := c.scheme.New(c.canonical)
		if err != nil {
			return nil
		}
		t = reflect.TypeOf(obj).Elem()
	}
	plan, err := c.planner.PlanOf(t, kind)
	if err != nil {
		return nil
	}
	return plan
}

// Planned reports whether items are made without decoding objects.
func (f *Form) Planned() bool { return f.Sliced() || f.plan() != nil }

// Item returns o as an item in this form. The bytes are shared.
func (f *Form) Item(o *cache.Object) ([]byte, error) {
	if o.Err() != nil {
		return nil, o.Err()
	}
	if f.Sliced() {
		return f.slice(o.Body())
	}
	if f.view.custom.is(f.shape, o) {
		return o.Body(), nil
	}
	return o.Encoding(cache.EncodingID(f.id), f.encode)
}

// Sliced reports whether items are parts of the canonical bytes: they cost nothing to
// make and no memory beside the object's.
func (f *Form) Sliced() bool {
	if f.view.custom != nil {
		return f.shape == Full && f.view.custom.alone
	}
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

// Source gives the items of a list of objects. As many are kept as there is room for,
// always the same: where there is not room for all, keeping one would drive out another
// of the same list.
type Source struct {
	*Form
	fit uint64 // which part of the objects is kept, of parts; 0 is none whatever the room
}

const parts = 1 << 16

// Source returns the source of the items of objects.
func (f *Form) Source(objects []*cache.Object) Source {
	const encoded, canonical = 3, 2 // JSON is about half as large again
	limit := f.view.Resource.schema.Budget().Limit()
	if f.Sliced() || limit <= 0 {
		return Source{f, parts}
	}
	need := estimate(objects, f.canonicalSize) / canonical * encoded
	if need <= limit {
		return Source{f, parts}
	}
	return Source{f, max(1, uint64(float64(limit)/float64(need)*parts*7/8))}
}

// Passing returns a source that keeps nothing that was not kept before.
func (f *Form) Passing() Source { return Source{f, 0} }

// keeps reports whether the item of o is one of those to keep.
func (s Source) keeps(o *cache.Object) bool {
	// Revisions are as good as at random when multiplied (Knuth's way to hash).
	return s.fit == parts || uint64(o.Revision())*0x9e3779b97f4a7c15>>48 < s.fit
}

// Kept returns the item of o if it costs nothing to make or was made before.
func (s Source) Kept(o *cache.Object) ([]byte, bool) {
	if s.Sliced() {
		item, err := s.Form.Item(o)
		return item, err == nil
	}
	if s.view.custom.is(s.shape, o) {
		return o.Body(), true
	}
	return o.Kept(cache.EncodingID(s.id))
}

// Item returns the item of o, shared bytes or some of the caller's own.
func (s Source) Item(o *cache.Object) ([]byte, error) {
	if s.keeps(o) {
		return s.Form.Item(o)
	}
	if item, ok := s.Kept(o); ok || o.Err() != nil {
		return item, o.Err()
	}
	s.refuse()
	return s.encode(o)
}

// refuse counts an item that would be kept if there were room.
func (s Source) refuse() {
	if s.fit > 0 {
		s.view.Resource.schema.Refuse()
	}
}

// Next returns the item of o as shared bytes, or appends it to dst and returns that, nil
// then being shared.
func (s Source) Next(dst []byte, o *cache.Object) (shared, grown []byte, err error) {
	if o.Err() != nil {
		return nil, dst, o.Err()
	}
	if item, ok := s.Kept(o); ok {
		return item, dst, nil
	}
	if s.keeps(o) && s.admits(o) {
		item, err := s.Form.Item(o)
		return item, dst, err
	}
	s.refuse()
	dst, err = s.append(dst, o)
	return nil, dst, err
}

// admits reports whether the item of o would be kept.
func (f *Form) admits(o *cache.Object) bool {
	const encoded, canonical = 3, 2
	return f.view.Resource.schema.Budget().Admits(int64(f.canonicalSize(o)) / canonical * encoded)
}

// canonicalSize is the size of the canonical bytes that the item of o is made of.
func (f *Form) canonicalSize(o *cache.Object) int {
	if f.shape != Full && f.view.custom == nil {
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

// AppendEvent appends the frame of an event that shows o as it is. It keeps the item if
// there is room: others may begin to watch the same objects.
func (f *Form) AppendEvent(dst []byte, event string, o *cache.Object) ([]byte, error) {
	return f.framed(dst, event, o, Source{f, parts}, o.Revision())
}

// AppendEventAt appends the frame of an event that shows o with revision in place of its
// own, as a DELETED event does.
func (f *Form) AppendEventAt(dst []byte, event string, o *cache.Object, revision int64) ([]byte, error) {
	return f.framed(dst, event, o, f.Passing(), revision)
}

func (f *Form) framed(dst []byte, event string, o *cache.Object, from Source, revision int64) ([]byte, error) {
	room := rooms.Get().(*[]byte)
	defer giveBack(room)
	item, grown, err := from.Next((*room)[:0], o)
	*room = grown[:0]
	if err != nil {
		return dst, err
	}
	if item == nil {
		item = grown
	}
	if revision != o.Revision() {
		start := len(grown)
		if grown, err = f.AppendRevision(grown, item, revision); err != nil {
			return dst, err
		}
		item, *room = grown[start:], grown[:0]
	}
	if dst == nil {
		dst = make([]byte, 0, f.FrameSize(event, item))
	}
	return f.AppendFrame(dst, event, item), nil
}

// rooms holds buffers for items that are copied elsewhere.
var rooms = sync.Pool{New: func() any { return new([]byte) }}

func giveBack(room *[]byte) {
	if invariants.Enabled {
		invariants.Overwrite(*room)
	}
	rooms.Put(room)
}

// encode makes the item of o in this form from its canonical bytes.
func (f *Form) encode(o *cache.Object) ([]byte, error) {
	if f.plan() == nil {
		return f.decoded(o)
	}
	room := rooms.Get().(*[]byte)
	defer giveBack(room)
	item, err := f.append((*room)[:0], o)
	*room = item[:0]
	if err != nil {
		return nil, err
	}
	return bytes.Clone(item), nil
}

// append appends the item of o, made by the plan if there is one for it.
func (f *Form) append(dst []byte, o *cache.Object) ([]byte, error) {
	if out, ok := f.planned(dst, o.Body()); ok {
		return out, nil
	}
	item, err := f.decoded(o)
	return append(dst, item...), err
}

// planned appends the item of a body, and reports whether the plan could make it.
func (f *Form) planned(dst, body []byte) ([]byte, bool) {
	plan := f.plan()
	if plan == nil {
		return dst, false
	}
	if f.shape != Full {
		part, err := wire.PartialProtobuf(body)
		if err != nil || f.view.Resource.codec.splitMetadata && bytes.Contains(part, []byte(splitPrefix)) {
			return dst, false
		}
		body = part
	}
	out, err := plan.Append(dst, body)
	return out, err == nil
}

// decoded makes the item of o by way of an object.
func (f *Form) decoded(o *cache.Object) ([]byte, error) {
	c := f.view.Resource.codec
	switch {
	case f.view.custom != nil:
		return f.view.custom.encode(f, o)
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
