package encoding_test

import (
	"bytes"
	"fmt"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/apihelpers"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/internal/registry/registrytest"
	"github.com/larder-io/larder/internal/registry/wire"
)

// upstream encodes objects of one view, media type and projection with upstream's own
// serializers, as apiserver pkg/endpoints/handlers puts them together.
type upstream struct {
	codecs     runtime.NegotiatedSerializer
	events     runtime.NegotiatedSerializer // encodes the events around objects in a stream
	gv         schema.GroupVersion          // of the output
	kind       schema.GroupVersion          // of the view
	projection encoding.Projection
	media      string
}

func newUpstream(v *registry.View, media encoding.MediaType, projection encoding.Projection) upstream {
	u := upstream{gv: v.GVK.GroupVersion(), kind: v.GVK.GroupVersion(), projection: projection, media: runtime.ContentTypeJSON}
	u.events = serializer.NewCodecFactory(schemeOf(v.Resource))
	if media == encoding.Protobuf {
		u.media = runtime.ContentTypeProtobuf
	}
	switch projection {
	case encoding.Partial:
		u.gv, u.codecs = metav1.SchemeGroupVersion, apihelpers.GetMetaInternalVersionCodecs()
	case encoding.PartialV1beta1:
		u.gv, u.codecs = metav1beta1.SchemeGroupVersion, apihelpers.GetMetaInternalVersionCodecs()
	default:
		u.codecs = serializer.NewCodecFactory(schemeOf(v.Resource),
			serializer.WithStreamingCollectionEncodingToJSON(), serializer.WithStreamingCollectionEncodingToProtobuf())
	}
	return u
}

func (u upstream) info(t testing.TB) runtime.SerializerInfo {
	t.Helper()
	info, ok := runtime.SerializerInfoForMediaType(u.codecs.SupportedMediaTypes(), u.media)
	if !ok {
		t.Fatalf("no serializer for %s", u.media)
	}
	return info
}

// projected converts obj to the requested projection.
func (u upstream) projected(t *testing.T, obj runtime.Object) runtime.Object {
	t.Helper()
	if u.projection == encoding.Full {
		return obj
	}
	if !meta.IsListType(obj) {
		return u.partial(t, obj)
	}
	list, err := meta.ListAccessor(obj)
	if err != nil {
		t.Fatal(err)
	}
	items, err := meta.ExtractList(obj)
	if err != nil {
		t.Fatal(err)
	}
	var partials []metav1.PartialObjectMetadata
	for _, item := range items {
		partials = append(partials, *u.partial(t, item))
	}
	listMeta := metav1.ListMeta{ResourceVersion: list.GetResourceVersion(), Continue: list.GetContinue(), RemainingItemCount: list.GetRemainingItemCount()}
	if u.projection == encoding.PartialV1beta1 {
		return &metav1beta1.PartialObjectMetadataList{ListMeta: listMeta, Items: partials}
	}
	return &metav1.PartialObjectMetadataList{ListMeta: listMeta, Items: partials}
}

func (u upstream) partial(t *testing.T, obj runtime.Object) *metav1.PartialObjectMetadata {
	t.Helper()
	accessor, err := meta.Accessor(obj)
	if err != nil {
		t.Fatal(err)
	}
	partial := meta.AsPartialObjectMetadata(accessor)
	partial.SetGroupVersionKind(u.gv.WithKind("PartialObjectMetadata"))
	return partial
}

// body returns a response that contains obj.
func (u upstream) body(t *testing.T, obj runtime.Object) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := u.codecs.EncoderForVersion(u.info(t).Serializer, u.gv).Encode(u.projected(t, obj), &out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// frame returns an event of a watch stream.
func (u upstream) frame(t *testing.T, event string, obj runtime.Object) []byte {
	t.Helper()
	stream := u.info(t).StreamSerializer
	var out bytes.Buffer
	var encoded bytes.Buffer
	outer := metav1.WatchEvent{Type: event, Object: runtime.RawExtension{Raw: u.body(t, obj)}}
	if err := u.events.EncoderForVersion(stream.Serializer, u.kind).Encode(&outer, &encoded); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Framer.NewFrameWriter(&out).Write(encoded.Bytes()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// schemeOf returns the scheme with the kinds of r.
func schemeOf(r *registry.Resource) *runtime.Scheme {
	switch r.GroupResource.Group {
	case apiextensions.GroupName:
		return apiextensionsserver.Scheme
	case apiregistration.GroupName:
		return aggregatorscheme.Scheme
	}
	return legacyscheme.Scheme
}

// readSample returns the object as upstream reads it.
func readSample(t *testing.T, s registrytest.Sample, r *registry.Resource, revision int64) runtime.Object {
	t.Helper()
	obj, err := r.Codec().Read(s.Value, revision)
	if err != nil {
		t.Fatal(err)
	}
	return obj
}

// decoded has the views whose JSON is encoded from decoded objects, and the reason.
var decoded = map[schema.GroupVersionResource]string{
	{Group: "autoscaling", Version: "v1", Resource: "horizontalpodautoscalers"}:                         "v2",
	{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "mutatingadmissionpolicies"}:       "v1beta1",
	{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "mutatingadmissionpolicybindings"}: "v1beta1",
	{Group: "events.k8s.io", Version: "v1", Resource: "events"}:                                         "v1 of the core group",
	{Group: "certificates.k8s.io", Version: "v1", Resource: "certificatesigningrequests"}:               "extra attributes of users",
	{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}:               "schemas",
	{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}:                           "few, in a scheme of their own",
}

// TestEncodersMatchUpstream compares every encoder of every served kind with upstream's encoders.
func TestEncodersMatchUpstream(t *testing.T) {
	server := registrytest.New(t, nil)
	seen := 0
	for _, group := range server.Registry.Groups() {
		for _, version := range group.Versions {
			for _, e := range version.Endpoints {
				if e.View == nil {
					continue
				}
				seen++
				if _, ok := decoded[e.GVR]; !ok && !e.View.Encoder(encoding.JSON, encoding.Full).Planned() {
					t.Errorf("%s is decoded to encode its JSON", e.GVR)
				}
				t.Run(e.GVR.GroupVersion().String()+"/"+e.GVR.Resource, func(t *testing.T) { testView(t, e.View) })
			}
		}
	}
	if seen < 50 {
		t.Errorf("tested %d views, want more", seen)
	}
}

func testView(t *testing.T, v *registry.View) {
	var samples []registrytest.Sample
	for seed := range int64(8) {
		samples = append(samples, registrytest.NewSample(t, v.Resource, seed))
	}
	for _, media := range []encoding.MediaType{encoding.JSON, encoding.Protobuf} {
		for _, projection := range []encoding.Projection{encoding.Full, encoding.Partial, encoding.PartialV1beta1} {
			t.Run(fmt.Sprintf("media=%d/projection=%d", media, projection), func(t *testing.T) {
				f, u := v.Encoder(media, projection), newUpstream(v, media, projection)
				for _, s := range samples {
					testObject(t, v, f, u, s)
				}
				testLists(t, v, f, u, samples[:3])
				testBookmarks(t, v, f, u)
			})
		}
	}
	testDecoded(t, v, samples)
}

func testObject(t *testing.T, v *registry.View, f *encoding.Encoder, u upstream, s registrytest.Sample) {
	t.Helper()
	_, passed, err := f.Uncached().Next(nil, s.Object) // before the encoding is cached
	if err != nil {
		t.Fatal(err)
	}
	item, err := f.Item(t.Context(), s.Object)
	if err != nil {
		t.Fatal(err)
	}
	if !f.Sliced() {
		equal(t, "passed", passed, item, len(item))
	}
	equal(t, "object", f.AppendObject(nil, item), u.body(t, readSample(t, s, v.Resource, s.Revision)), f.ObjectSize(item))
	added := u.frame(t, "ADDED", readSample(t, s, v.Resource, s.Revision))
	equal(t, "added", f.AppendFrame(nil, "ADDED", item), added, len(added))
	for _, revision := range []int64{7, s.Revision * 1000} {
		item, err := f.ItemAt(s.Object, revision)
		if err != nil {
			t.Fatal(err)
		}
		want := u.frame(t, "DELETED", readSample(t, s, v.Resource, revision))
		equal(t, "deleted", f.AppendFrame(nil, "DELETED", item), want, len(want))
		frame, err := f.AppendEventAt(nil, "DELETED", s.Object, revision)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "event deleted", frame, want, len(want))
	}
	frame, err := f.AppendEvent([]byte("before"), "ADDED", s.Object)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "event", frame, append([]byte("before"), f.AppendFrame(nil, "ADDED", item)...), len(frame))
	decodes := v.Resource.Codec().Decodes()
	if again, err := f.Item(t.Context(), s.Object); err != nil || !bytes.Equal(again, item) {
		t.Errorf("item changed: %v", err)
	}
	if v.Resource.Codec().Decodes() != decodes {
		t.Error("decoded twice for the same encoding")
	}
}

func testLists(t *testing.T, v *registry.View, f *encoding.Encoder, u upstream, samples []registrytest.Sample) {
	t.Helper()
	remaining := int64(12345)
	for n := 0; n <= len(samples); n++ {
		for _, listMeta := range []wire.ListMeta{{Revision: 99}, {Revision: 1 << 40, Continue: "eyJ2IjoibWV0YS5rOHMuaW8vdjEifQ"}, {Revision: 5, Continue: "x", Remaining: &remaining}} {
			var objects []runtime.Object
			var items [][]byte
			size := 0
			for _, s := range samples[:n] {
				item, err := f.Item(t.Context(), s.Object)
				if err != nil {
					t.Fatal(err)
				}
				objects = append(objects, readSample(t, s, v.Resource, s.Revision))
				items = append(items, item)
				size += f.ItemSize(item)
			}
			if objects == nil {
				objects = []runtime.Object{}
			}
			list := v.Resource.Codec().NewList()
			if err := meta.SetList(list, objects); err != nil {
				t.Fatal(err)
			}
			if err := (storage.APIObjectVersioner{}).UpdateList(list, uint64(listMeta.Revision), listMeta.Continue, listMeta.Remaining); err != nil {
				t.Fatal(err)
			}
			equal(t, fmt.Sprintf("list of %d", n), listBody(f, listMeta, items, size), u.body(t, list), f.ListSize(listMeta, n, size))
		}
	}
}

func testBookmarks(t *testing.T, v *registry.View, f *encoding.Encoder, u upstream) {
	t.Helper()
	for _, end := range []bool{false, true} {
		for _, revision := range []int64{1, 987654321} {
			obj, err := v.Resource.Codec().Bookmark(revision, end)
			if err != nil {
				t.Fatal(err)
			}
			got, err := f.AppendBookmark(nil, revision, end)
			if err != nil {
				t.Fatal(err)
			}
			equal(t, "bookmark", got, u.frame(t, "BOOKMARK", obj), len(got))
		}
	}
}

// testDecoded checks that objects decoded from the cache encode to the same bytes again.
func testDecoded(t *testing.T, v *registry.View, samples []registrytest.Sample) {
	t.Helper()
	for _, s := range samples {
		obj, err := v.Resource.Codec().Internal(t.Context(), s.Object, 0)
		if err != nil {
			t.Fatal(err)
		}
		got, err := v.Resource.Codec().EncodeStored(obj)
		if err != nil {
			t.Fatal(err)
		}
		want, err := v.Resource.Codec().EncodeStored(readSample(t, s, v.Resource, s.Revision))
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "decoded", got, want, len(got))
	}
}

func equal(t *testing.T, what string, got, want []byte, size int) {
	t.Helper()
	if size != len(got) {
		t.Errorf("%s: %d bytes, want the announced %d", what, len(got), size)
	}
	if bytes.Equal(got, want) {
		return
	}
	at := 0
	for at < len(got) && at < len(want) && got[at] == want[at] {
		at++
	}
	from := max(0, at-80)
	t.Errorf("%s: differs at byte %d\n got %q\nwant %q", what, at, got[from:min(len(got), at+120)], want[from:min(len(want), at+120)])
}

// listBody returns a whole list of items, whose sizes add up to size.
func listBody(w wire.Writer, meta wire.ListMeta, items [][]byte, size int) []byte {
	body := w.AppendListHeader(nil, meta, len(items), size)
	for i, item := range items {
		body = append(w.AppendItemHeader(body, i, item), item...)
	}
	return w.AppendListFooter(body, meta, len(items))
}
