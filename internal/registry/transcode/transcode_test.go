package transcode_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/randfill"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/registry/transcode"
)

// message has the methods of generated types.
type message interface {
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
	Reset()
}

// kinds returns all kinds of all served groups and versions that have a protobuf form, and PartialObjectMetadata. Kinds
// with the extra attributes of a user are missing, because no plan can express the type of these.
func kinds() map[schema.GroupVersionKind]reflect.Type {
	all := map[schema.GroupVersionKind]reflect.Type{
		metav1.SchemeGroupVersion.WithKind("PartialObjectMetadata"): reflect.TypeFor[metav1.PartialObjectMetadata](),
	}
	for gvk, t := range scheme.Scheme.AllKnownTypes() {
		if _, ok := reflect.New(t).Interface().(message); ok && gvk.Version != runtime.APIVersionInternal && strings.HasSuffix(t.PkgPath(), gvk.Version) && !strings.Contains(t.PkgPath(), "apis/meta") && !hasExtra(gvk.Kind) {
			all[gvk] = t
		}
	}
	return all
}

func hasExtra(kind string) bool {
	return strings.HasPrefix(kind, "CertificateSigningRequest") || kind == "TokenReview" || kind == "SelfSubjectReview" || strings.HasSuffix(kind, "SubjectAccessReview")
}

// awkward are strings and parts of strings that encoders treat differently.
var awkward = []string{
	"", "a", "plain text of more than eight bytes", "<&>", `"\`, "\x00\x1f \x7f", "\b\f\n\r\t", "é\u2028\u2029\u2027", "\xff\xfe", "\xe2\x80", "\xed\xa0\x80", "\U0001f600", "eight by\u00e9",
}

func awkwardText(c randfill.Continue) string {
	var text strings.Builder
	for range c.Intn(4) {
		text.WriteString(awkward[c.Intn(len(awkward))])
	}
	return text.String()
}

// filler fills objects with values that their types allow.
func filler(seed int64) *randfill.Filler {
	funcs := func(serializer.CodecFactory) []any {
		return []any{
			func(s *string, c randfill.Continue) { *s = awkwardText(c) },
			func(m *metav1.TypeMeta, c randfill.Continue) {},
			func(t *metav1.Time, c randfill.Continue) {
				*t = metav1.Time{}
				if c.Intn(4) > 0 {
					*t = metav1.Unix(c.Int63()%253402300800-c.Int63()%2*1e11, 0)
				}
			},
			func(t *metav1.MicroTime, c randfill.Continue) {
				*t = metav1.MicroTime{}
				if c.Intn(4) > 0 {
					*t = metav1.NewMicroTime(time.Unix(c.Int63()%253402300800-c.Int63()%2*1e11, c.Int63()%1e9))
				}
			},
			func(q *resource.Quantity, c randfill.Continue) {
				*q = *resource.NewScaledQuantity(c.Int63()>>c.Intn(63), resource.Scale(c.Intn(24)-12))
				q.Format = []resource.Format{resource.DecimalSI, resource.BinarySI, resource.DecimalExponent}[c.Intn(3)]
			},
			func(i *intstr.IntOrString, c randfill.Continue) {
				*i = intstr.FromInt32(int32(c.Uint32()))
				if c.Bool() {
					*i = intstr.FromString(awkwardText(c))
				}
			},
			func(f *metav1.FieldsV1, c randfill.Continue) { f.SetRawBytes([]byte(someJSON(c, false))) },
			func(r *runtime.RawExtension, c randfill.Continue) {
				if *r = (runtime.RawExtension{}); c.Bool() {
					r.Raw = []byte(someJSON(c, true))
				}
			},
		}
	}
	f := fuzzer.FuzzerFor(fuzzer.MergeFuzzerFuncs(funcs), rand.NewSource(seed), serializer.NewCodecFactory(scheme.Scheme))
	return f.NilChance(.4).NumElements(0, 3)
}

func someJSON(c randfill.Continue, any bool) string {
	name, _ := json.Marshal(awkwardText(c))
	all := []string{
		`{}`, `{"f:a":{}}`, `{"f:a":{".":{},"k:{\"type\":\"Ready\"}":{"f:b":{}}},"f:c":{}}`,
		` { "f:a" : { } } `, `{"a":"<b>&\u003c","c":[1,2.50,1e5,true,null]}`, fmt.Sprintf(`{%s:{%s:{}}}`, name, name), "{\"\u2028\":{}}",
		`{"f:a":{"f:b":{},"f:c":{"f:d":{}}}}`,
	}
	if any {
		all = append(all, `null`, `[]`, ` "x<" `, `1.0`, `true`)
	}
	return all[c.Intn(len(all))]
}

// check compares a plan with upstream's decoder and encoding/json.
func check(t testing.TB, plan *transcode.Plan, typ reflect.Type, body []byte) {
	t.Helper()
	obj := reflect.New(typ).Interface().(message)
	if err := obj.Unmarshal(body); err != nil {
		t.Fatal(err)
	}
	want, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	kept := bytes.Clone(body)
	got, _, err := plan.Append([]byte("head"), body)
	if err != nil {
		t.Fatalf("%s: %v: %.500s", typ, err, want)
	}
	if got = bytes.TrimPrefix(got, []byte("head")); !bytes.Equal(got, want) {
		at := 0
		for at < min(len(got), len(want)) && got[at] == want[at] {
			at++
		}
		from := max(0, at-80)
		t.Fatalf("%s differs at byte %d\n got %q\nwant %q", typ, at, got[from:min(len(got), at+80)], want[from:min(len(want), at+80)])
	}
	if !bytes.Equal(body, kept) {
		t.Fatalf("%s: the message was changed", typ)
	}
}

// TestEveryKindMatchesUpstream transcodes objects of every kind and compares the result with upstream's.
func TestEveryKindMatchesUpstream(t *testing.T) {
	planner, tested := transcode.NewPlanner(), 0
	all := kinds()
	order := make([]schema.GroupVersionKind, 0, len(all))
	for gvk := range all {
		order = append(order, gvk)
	}
	slices.SortFunc(order, func(a, b schema.GroupVersionKind) int { return strings.Compare(a.String(), b.String()) })
	for _, gvk := range order {
		tested++
		t.Run(strings.ReplaceAll(gvk.GroupVersion().String(), "/", "_")+"_"+gvk.Kind, func(t *testing.T) {
			plan, err := planner.Plan(all[gvk], schema.GroupVersionKind{})
			if err != nil {
				t.Fatal(err)
			}
			check(t, plan, all[gvk], nil)
			for seed := range int64(proctest.Iterations(20)) {
				obj := reflect.New(all[gvk]).Interface().(message)
				filler(seed).Fill(obj)
				body, err := obj.Marshal()
				if err != nil {
					t.Fatal(err)
				}
				check(t, plan, all[gvk], body)
			}
		})
	}
	if tested < 290 {
		t.Errorf("tested %d kinds, want more", tested)
	}
}

// TestTypesWithoutAPlan checks that a type with unknown JSON or protobuf has no plan.
func TestTypesWithoutAPlan(t *testing.T) {
	for _, of := range []any{
		"no struct",
		struct {
			NoTag string `json:"a"`
		}{},
		struct {
			NoNumber string `protobuf:"bytes,0,opt" json:"a"`
		}{},
		struct {
			NoJSON string `protobuf:"bytes,1,opt" json:"-"`
		}{},
		struct {
			NoName string `protobuf:"bytes,1,opt"`
		}{},
		struct {
			Option string `protobuf:"bytes,1,opt" json:"a,string"`
		}{},
		struct {
			ZeroOmitted bool `protobuf:"varint,1,opt" json:"a,omitzero"`
		}{},
		struct {
			Kind float64 `protobuf:"fixed64,1,opt" json:"a"`
		}{},
		struct {
			Keys map[int32]string `protobuf:"bytes,1,rep" json:"a"`
		}{},
		struct {
			WritesItself json.RawMessage `protobuf:"bytes,1,opt" json:"a"`
		}{},
		struct {
			WritesText netip.Addr `protobuf:"bytes,1,opt" json:"a"`
		}{},
		struct {
			NoMessage struct{} `protobuf:"bytes,1,opt" json:"a"`
		}{},
	} {
		if _, err := transcode.NewPlanner().Plan(reflect.TypeOf(of), schema.GroupVersionKind{}); !errors.Is(err, transcode.ErrUnsupported) {
			t.Errorf("%T: error %v", of, err)
		}
	}
}

// realPod returns a pod with two managers, as controllers and a kubelet leave it.
func realPod(t testing.TB) *corev1.Pod {
	t.Helper()
	data, err := os.ReadFile("testdata/pod.json")
	if err != nil {
		t.Fatal(err)
	}
	pod := new(corev1.Pod)
	if err := json.Unmarshal(data, pod); err != nil {
		t.Fatal(err)
	}
	return pod
}

// TestBuffersOfAnySize checks that the output does not depend on the capacity of the buffer.
func TestBuffersOfAnySize(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: realPod(t).ObjectMeta}
	pod.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m", FieldsV1: metav1.NewFieldsV1(`{"f:a":{}}`)}}
	pod.Annotations = map[string]string{"long": strings.Repeat("plain ", 40), "special": "<\xff\n>"}
	pod.Spec.Containers = []corev1.Container{{
		Args:          []string{"a", "-b=c"},
		LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("port")}}},
		Resources:     corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": resource.MustParse("1")}},
	}}
	pod.Status.StartTime = &metav1.Time{}
	body, err := pod.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	want, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := transcode.NewPlanner().Plan(reflect.TypeFor[corev1.Pod](), schema.GroupVersionKind{})
	if err != nil {
		t.Fatal(err)
	}
	for size := range len(want) + 200 {
		got, _, err := plan.Append(make([]byte, 0, size), body)
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("with room for %d bytes: error %v\n got %q\nwant %q", size, err, got, want)
		}
	}
}

// pods returns the messages of pods that a controller has created and that run on nodes. Unless alike is set, each pod
// has a unique label.
func pods(t testing.TB, n int, alike bool) (bodies [][]byte) {
	random := rand.New(rand.NewSource(1))
	began := time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)
	made := realPod(t)
	for i := range n {
		pod := made.DeepCopy()
		pod.Name = fmt.Sprintf("%s%05d", pod.GenerateName, i)
		pod.UID = types.UID(fmt.Sprintf("%08x-%04x-4000-8000-%012x", random.Uint32(), i, random.Uint64()>>16))
		pod.ResourceVersion = strconv.Itoa(90000 + 37*i)
		pod.Spec.NodeName = fmt.Sprintf("node-%d", random.Intn(500))
		pod.Status.PodIP = fmt.Sprintf("10.%d.%d.%d", random.Intn(4), random.Intn(256), random.Intn(256))
		pod.Status.PodIPs = []corev1.PodIP{{IP: pod.Status.PodIP}}
		at := metav1.NewTime(began.Add(time.Duration(i) * 7 * time.Minute))
		pod.CreationTimestamp, pod.Status.StartTime = at, &at
		for j := range pod.Status.Conditions {
			pod.Status.Conditions[j].LastTransitionTime = at
		}
		for j := range pod.ManagedFields {
			pod.ManagedFields[j].Time = &at
		}
		if !alike {
			pod.Labels[fmt.Sprintf("label-%05d", i)] = "yes"
		}
		body, err := pod.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		bodies = append(bodies, body)
	}
	return bodies
}

// BenchmarkPod makes the JSON of a pod from its message: with its plan, and by decoding and encoding it.
func BenchmarkPod(b *testing.B) {
	body, err := realPod(b).Marshal()
	if err != nil {
		b.Fatal(err)
	}
	plan, err := transcode.NewPlanner().Plan(reflect.TypeFor[corev1.Pod](), schema.GroupVersionKind{})
	if err != nil {
		b.Fatal(err)
	}
	var dst []byte
	for _, c := range []struct {
		among string
		n     int
		alike bool
	}{
		{"neighbours", 1000, true},
		{"neighbours in memory", 20000, true}, // more than a processor's caches hold
		{"strangers", 1000, false},
	} {
		bodies := pods(b, c.n, c.alike)
		b.Run("among "+c.among, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if dst, _, err = plan.Append(dst[:0], bodies[i%len(bodies)]); err != nil {
					b.Fatal(err)
				}
			}
			b.SetBytes(int64(len(dst)))
		})
	}
	b.Run("objects", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var pod corev1.Pod
			if err := pod.Unmarshal(body); err != nil {
				b.Fatal(err)
			}
			if dst, err = json.Marshal(&pod); err != nil {
				b.Fatal(err)
			}
		}
		b.SetBytes(int64(len(dst)))
	})
}
