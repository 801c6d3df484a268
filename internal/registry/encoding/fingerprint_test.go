package encoding_test

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	apitesting "k8s.io/kubernetes/pkg/api/testing"
	"k8s.io/kubernetes/pkg/apis/core"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/internal/registry/registrytest"
	"github.com/larder-io/larder/internal/registry/wire"
)

// TestFingerprintsDecodeToTheSameObject decodes values of every resource that has fingerprints, in all versions, as
// they are stored and without some of their fields. Many values have equal fingerprints, and many differ slightly. The
// results must equal those of decoding each value alone.
func TestFingerprintsDecodeToTheSameObject(t *testing.T) {
	server := registrytest.New(t, nil)
	tested := 0
	for _, r := range server.Registry.Resources() {
		if r.Cache == nil || r.Codec().Tokens(r.Codec().Canonical) == nil {
			continue
		}
		tested++
		t.Run(r.GroupResource.String(), func(t *testing.T) { checkFingerprints(t, r) })
	}
	if tested < 10 {
		t.Errorf("%d resources have fingerprints, want more", tested)
	}
}

func checkFingerprints(t *testing.T, r *registry.Resource) {
	const bases, variants = 12, 24
	random := rand.New(rand.NewSource(5))
	fill := fuzzer.FuzzerFor(apitesting.FuzzerFuncs, random, legacyscheme.Codecs)
	values, recognized := 0, 0
	for _, gvk := range versionsOf(r) {
		fields := r.Codec().Tokens(gvk)
		if fields == nil {
			continue // no protobuf
		}
		for i := range bases {
			obj := r.Codec().New()
			fill.Fill(obj)
			if pod, ok := obj.(*core.Pod); ok && i%4 == 0 { // the fuzzer gives it none
				pod.Status.PodIPs = []core.PodIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}}
				pod.Status.HostIPs = []core.HostIP{{IP: "10.0.0.2"}}
				pod.Status.HostIP = "10.0.0.2"
			}
			base := variation{rand: random, fewer: i%2 == 1}
			value := base.value(stored(t, obj, gvk), gvk, fields)
			checkValue(t, r, value, 1)
			for j := range variants {
				v := variation{rand: random, careless: j%3 == 2}
				if j%3 == 0 {
					v.renamed = make(map[string][]byte)
				}
				other := v.value(value, gvk, fields)
				if r.Codec().Recognized(other) {
					recognized++
				}
				checkValue(t, r, other, int64(i*variants+j+1))
			}
			values += variants
		}
	}
	hits, misses := r.Codec().Fingerprints()
	if hits < uint64(values/4) || misses < bases {
		t.Errorf("%d values had a known fingerprint, %d had not: too few for a test", hits, misses)
	}
	if recognized < values/20 {
		t.Errorf("%d of %d values had a known pattern: too few for a test", recognized, values)
	}
	t.Logf("fingerprints: %d known, %d not; patterns: %d recognized", hits, misses, recognized)
}

// versionsOf lists the kinds as which objects of r may be stored.
func versionsOf(r *registry.Resource) []schema.GroupVersionKind {
	canonical := r.Codec().Canonical
	var all []schema.GroupVersionKind
	for _, gv := range legacyscheme.Scheme.VersionsForGroupKind(canonical.GroupKind()) {
		all = append(all, gv.WithKind(canonical.Kind))
	}
	return all
}

// stored encodes obj in a version.
func stored(t *testing.T, obj runtime.Object, gvk schema.GroupVersionKind) []byte {
	t.Helper()
	serializer := protobuf.NewSerializer(legacyscheme.Scheme, legacyscheme.Scheme)
	value, err := runtime.Encode(legacyscheme.Codecs.EncoderForVersion(serializer, gvk.GroupVersion()), obj)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// TestUselessFingerprintsAreNotTaken checks that values are no longer fingerprinted if all fingerprints differ.
func TestUselessFingerprintsAreNotTaken(t *testing.T) {
	server := registrytest.New(t, nil)
	all := server.Registry.Resources()
	r := all[slices.IndexFunc(all, func(r *registry.Resource) bool { return r.GroupResource.Resource == "configmaps" })]
	gvk := corev1.SchemeGroupVersion.WithKind("ConfigMap")
	const values = 20_000
	for i := range values {
		obj := &core.ConfigMap{Data: map[string]string{fmt.Sprint("key-", i): "x"}}
		registrytest.Object(r, "ns/name", stored(t, obj, gvk), 1)
	}
	if taken := r.Codec().FingerprintsKnown(); taken > values/2 {
		t.Errorf("%d fingerprints of %d values are kept, want at most half", taken, values)
	}
	want := "key-last"
	got := registrytest.Object(r, "ns/name", stored(t, &core.ConfigMap{Data: map[string]string{want: "x"}}, gvk), 1)
	if got.Err() != nil || !bytes.Contains(got.Body(), []byte(want)) {
		t.Errorf("body %q, error %v", got.Body(), got.Err())
	}
}

// checkValue decodes a value with known fingerprints and without, twice because the first may add its fingerprint.
func checkValue(t *testing.T, r *registry.Resource, value []byte, revision int64) {
	t.Helper()
	want := r.Codec().DecodeUnknown("ns/name", bytes.Clone(value), revision)
	for range 2 {
		got := registrytest.Object(r, "ns/name", bytes.Clone(value), revision)
		if (got.Err() == nil) != (want.Err() == nil) || got.Err() != nil && got.Err().Error() != want.Err().Error() {
			t.Fatalf("error %v, want %v as without fingerprints", got.Err(), want.Err())
		}
		if !bytes.Equal(got.Body(), want.Body()) {
			t.Fatalf("body of %q:\n got %q\nwant %q", value, got.Body(), want.Body())
		}
		if g, w := described(got), described(want); !maps.Equal(g, w) || got.StoredSize() != want.StoredSize() {
			t.Fatalf("labels and fields: got %v, want %v", g, w)
		}
	}
}

// described returns the labels and fields of an object that selectors match.
func described(o *cache.Object) map[string]string {
	all := make(map[string]string)
	for _, name := range []string{
		"metadata.name", "metadata.namespace", "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName",
		"spec.hostNetwork", "spec.unschedulable", "status.phase", "status.podIP", "status.nominatedNodeName", "status.replicas", "status.successful",
		"type", "reason", "source", "reportingComponent", "involvedObject.kind", "involvedObject.namespace", "involvedObject.name",
		"involvedObject.uid", "involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath",
	} {
		all[name] = fmt.Sprint(o.Fields().Has(name), o.Fields().Get(name))
	}
	var m metav1.ObjectMeta
	if raw, err := wire.ObjectMetaProtobuf(o.Body()); err == nil && m.Unmarshal(raw) == nil {
		for key := range m.Labels {
			value, found := o.Labels().Lookup(key)
			all["label "+key] = fmt.Sprint(found, value)
		}
	}
	return all
}

// variation changes the parts of a stored value that its Layout omits and, if careless is set, other parts, too. With
// fewer, it only omits fields; with renamed, equal contents stay equal and different ones different.
type variation struct {
	rand            *rand.Rand
	careless, fewer bool
	seen            [][]byte
	renamed         map[string][]byte
}

func (v *variation) value(value []byte, gvk schema.GroupVersionKind, fields *encoding.Layouts) []byte {
	raw, _, _, _ := wire.Unenvelope(value)
	if v.careless && v.rand.Intn(20) == 0 { // change the envelope, too
		return v.other(nil, value, 1)
	}
	kind := wire.Kind{APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind}
	return wire.Protobuf(kind).AppendObject(nil, v.message(raw, fields))
}

func (v *variation) message(msg []byte, fields *encoding.Layouts) (out []byte) {
	for len(msg) > 0 {
		number, kind, n := protowire.ConsumeTag(msg)
		size := protowire.ConsumeFieldValue(number, kind, msg[n:])
		if n < 0 || size < 0 {
			return append(out, msg...)
		}
		field, content := msg[:n+size], msg[n:n+size]
		msg = msg[n+size:]
		if fields != nil && int(number) < len(fields) && fields[number] != nil && kind == protowire.BytesType {
			content, _ = protowire.ConsumeBytes(content)
			out = protowire.AppendTag(out, number, kind)
			out = protowire.AppendBytes(out, v.content(content, fields[number]))
			continue
		}
		out = v.other(out, field, number)
	}
	if v.careless && v.rand.Intn(100) == 0 {
		out = protowire.AppendTag(out, protowire.Number(1+v.rand.Intn(40)), protowire.VarintType)
		out = protowire.AppendVarint(out, uint64(v.rand.Intn(3)))
	}
	return out
}

func (v *variation) content(content []byte, layout *encoding.Layout) []byte {
	time, micro := layout.IsTime()
	switch {
	case layout.Inner() != nil:
		return v.message(content, layout.Inner())
	case v.fewer || layout.IsKept():
		return content
	case v.renamed != nil && len(content) > 0 && !time:
		if v.renamed[string(content)] == nil {
			v.renamed[string(content)] = fmt.Appendf(nil, "%d", v.rand.Int63n(1<<v.rand.Intn(62)+1)+int64(len(v.renamed))<<32)
		}
		return v.renamed[string(content)]
	case !v.careless && len(content) == 0 || v.rand.Intn(3) == 0:
		v.seen = append(v.seen, content)
		return content
	case time:
		return v.time(content, micro)
	}
	return v.word()
}

// word returns a text that is special in some kind, a text of the same object, or any other text.
func (v *variation) word() []byte {
	words := []string{"default", "host", "0.0.0.0", "None", "::1", "kubernetes.io/x", "system:masters", "a/b", "\xff\xfe", "true", "0", "{}"}
	switch n := v.rand.Intn(8); {
	case n == 0:
		return []byte(words[v.rand.Intn(len(words))])
	case n == 1 && len(v.seen) > 0:
		return v.seen[v.rand.Intn(len(v.seen))]
	case n == 2 && v.careless:
		return nil
	}
	return fmt.Appendf(nil, "w%d", v.rand.Int63())
}

func (v *variation) time(content []byte, micro bool) []byte {
	seconds, nanos := uint64(v.rand.Int63n(1<<33)+1), uint64(0)
	if micro {
		nanos = uint64(v.rand.Intn(1e6)) * 1000
	}
	if v.careless {
		switch v.rand.Intn(8) {
		case 0:
			return nil
		case 1:
			nanos = uint64(v.rand.Intn(1e9))
		case 2:
			seconds = 0
		case 3:
			seconds = uint64(v.rand.Int63())
		case 4:
			return content
		}
	}
	out := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), seconds)
	return protowire.AppendVarint(protowire.AppendTag(out, 2, protowire.VarintType), nanos)
}

// other adds fields that the Layout does not have.
func (v *variation) other(out, field []byte, number protowire.Number) []byte {
	if v.fewer && v.rand.Intn(15) == 0 {
		return out
	}
	if !v.careless {
		return append(out, field...)
	}
	switch v.rand.Intn(300) {
	case 0: // omitted
	case 1:
		out = append(append(out, field...), field...)
	case 2:
		out = append(protowire.AppendTag(out, number, protowire.BytesType), 0)
	case 3:
		out = append(append([]byte(nil), field...), out...)
	case 4:
		at := v.rand.Intn(len(field))
		field = bytes.Clone(field)
		field[at] ^= 1 << v.rand.Intn(8)
		out = append(out, field...)
	default:
		out = append(out, field...)
	}
	return out
}

// TestUndecodableValuesAreCountedOnce checks that the metric counts each value once, although the value is decoded twice:
// the second time to make a rule.
func TestUndecodableValuesAreCountedOnce(t *testing.T) {
	c := registrytest.New(t, nil).Registry.Endpoint(corev1.SchemeGroupVersion.WithResource("configmaps"), "").View.Resource.Codec()
	raw := protowire.AppendBytes(protowire.AppendTag(nil, 4, protowire.BytesType), nil) // immutable is a bool
	data := append(protowire.AppendBytes(wire.Envelope("v1", "ConfigMap"), raw), wire.EnvelopeTail...)
	for n := range int64(8) {
		if o := c.DecodeValue(t.Context(), "/registry/configmaps/n/a", "n/a", data, n+1); o.Err() == nil {
			t.Fatal("the value was decoded")
		}
		if got := c.Undecodable(); got != n+1 {
			t.Errorf("%d values are counted after %d", got, n+1)
		}
	}
}
