package transcode_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand"
	"reflect"
	"strings"
	"testing"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/randfill"

	"github.com/larder-io/larder/internal/registry/transcode"
)

// plainFiller returns a filler whose strings need no escapes.
func plainFiller(seed int64) *randfill.Filler {
	return filler(seed).Funcs(
		func(s *string, c randfill.Continue) { *s = strings.Repeat("plain ", 1+c.Intn(8)) },
		func(i *intstr.IntOrString, c randfill.Continue) { *i = intstr.FromString("port") },
		func(f *metav1.FieldsV1, c randfill.Continue) { f.SetRawBytes([]byte(`{"f:spec":{"f:a":{}}}`)) },
		func(r *runtime.RawExtension, c randfill.Continue) { r.Raw = []byte(`{"a":"b"}`) },
	)
}

// TestNeighbours changes bytes of messages of every kind. Each result must equal upstream's for that message alone,
// without traces of earlier messages.
func TestNeighbours(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	planner := transcode.NewPlanner()
	copied := make(map[bool]int) // by mayBePlain
	walked := 0
	for _, typ := range kinds() {
		plan, err := planner.Plan(typ, schema.GroupVersionKind{})
		if err != nil {
			t.Fatal(err)
		}
		w := transcode.NewWriter()
		for _, mayBePlain := range []bool{true, false} {
			obj := reflect.New(typ).Interface().(message)
			switch {
			case !mayBePlain:
				filler(1).Fill(obj)
			case typ == reflect.TypeFor[corev1.Pod]():
				obj = realPod(t)
			default:
				plainFiller(1).Fill(obj)
			}
			body, err := obj.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			for i := range 40 {
				changed := bytes.Clone(body)
				for range min(i, 3, len(body)) {
					at := random.Intn(len(body))
					for tries := 0; tries < i%8 && !unicode.IsLetter(rune(changed[at])); tries++ {
						at = random.Intn(len(body)) // most letters belong to strings
					}
					changed[at] = "az09\"\x00\x01\x08\x0a\x12\x1a\xff"[random.Intn(12)]
				}
				if testNeighbour(t, w, plan, typ, changed) {
					copied[mayBePlain]++
				} else {
					walked++
				}
			}
		}
	}
	counts := fmt.Sprintf("templates wrote %d messages that may be plain and %d others, %d were written without", copied[true], copied[false], walked)
	t.Log(counts)
	if copied[true] < 100 || copied[false] < 50 || walked < 100 {
		t.Error(counts + "; want 100, 50 and 100 or more")
	}
}

// testNeighbour writes a message after others, and reports whether a template was used.
func testNeighbour(t *testing.T, w *transcode.Writer, plan *transcode.Plan, typ reflect.Type, body []byte) bool {
	t.Helper()
	got, copied, err := w.Append(plan, []byte("head"), body)
	if err != nil {
		return false // upstream's output causes no error: TestEveryKindMatchesUpstream
	}
	obj := reflect.New(typ).Interface().(message)
	if err := obj.Unmarshal(body); err != nil {
		t.Fatalf("%s, by a template: %t: got %q from a message that upstream rejects: %v", typ, copied, got, err)
	}
	want, err := json.Marshal(obj)
	if err != nil || !bytes.Equal(got, append([]byte("head"), want...)) {
		t.Fatalf("%s, by a template: %t, error %v\n got %q\nwant %q", typ, copied, err, got[4:], want)
	}
	return copied
}

// TestNeighboursOfQuantities checks that a quantity is not copied from the message if upstream would write it differently.
func TestNeighboursOfQuantities(t *testing.T) {
	plan, err := transcode.NewPlanner().Plan(reflect.TypeFor[corev1.Pod](), schema.GroupVersionKind{})
	if err != nil {
		t.Fatal(err)
	}
	pod := realPod(t)
	pod.Spec.Overhead = corev1.ResourceList{"cpu": resource.MustParse("1234")}
	body, err := pod.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	w, copied := transcode.NewWriter(), 0
	for _, text := range []string{"1234", "4321", "1000", "0123", "1024", "900m", "5678"} {
		if testNeighbour(t, w, plan, reflect.TypeFor[corev1.Pod](), bytes.Replace(body, []byte("1234"), []byte(text), 1)) {
			copied++
		}
	}
	if copied < 3 {
		t.Errorf("%d of 7 messages were written by templates, want 3 or more", copied)
	}
}

// FuzzNeighbours changes bytes of a message, and writes it after the original.
func FuzzNeighbours(f *testing.F) {
	plan, err := transcode.NewPlanner().Plan(reflect.TypeFor[corev1.Pod](), schema.GroupVersionKind{})
	if err != nil {
		f.Fatal(err)
	}
	pod := realPod(f)
	pod.Annotations = map[string]string{"status": `[{"name":"a","ips":["10.0.0.1"]}]`}
	body, err := pod.Marshal()
	if err != nil {
		f.Fatal(err)
	}
	for _, at := range []uint16{10, 300, 1000, 4000} {
		f.Add(body, at, at+1, byte('0'), byte('<'))
	}
	f.Fuzz(func(t *testing.T, body []byte, at, then uint16, b, c byte) {
		if len(body) == 0 {
			return
		}
		w := transcode.NewWriter()
		testNeighbour(t, w, plan, reflect.TypeFor[corev1.Pod](), body)
		changed := bytes.Clone(body)
		changed[int(at)%len(body)] = b
		testNeighbour(t, w, plan, reflect.TypeFor[corev1.Pod](), changed)
		changed[int(then)%len(body)] = c
		testNeighbour(t, w, plan, reflect.TypeFor[corev1.Pod](), changed)
		testNeighbour(t, w, plan, reflect.TypeFor[corev1.Pod](), body)
	})
}

// TestSimilarPodsShareTemplates checks that similar pods are written by a few shared templates, also after pods that
// differ more.
func TestSimilarPodsShareTemplates(t *testing.T) {
	plan, err := transcode.NewPlanner().Plan(reflect.TypeFor[corev1.Pod](), schema.GroupVersionKind{})
	if err != nil {
		t.Fatal(err)
	}
	w := transcode.NewWriter()
	for _, c := range []struct {
		what        string
		bodies      [][]byte
		least, most int
	}{
		{"alike", pods(t, 300, true), 200, 300},
		{"different", pods(t, 300, false), 0, 0},
		{"alike again", pods(t, 1200, true), 500, 1200},
	} {
		used := 0
		for _, body := range c.bodies {
			got, copied, err := w.Append(plan, nil, body)
			if err != nil {
				t.Fatal(err)
			}
			var pod corev1.Pod
			if err := pod.Unmarshal(body); err != nil {
				t.Fatal(err)
			}
			if want, err := json.Marshal(&pod); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%s, by a template: %t, error %v\n got %q\nwant %q", c.what, copied, err, got, want)
			}
			if templates := w.Templates(); templates > transcode.MaxTemplates {
				t.Fatalf("%d templates, want at most %d", templates, transcode.MaxTemplates)
			}
			if copied {
				used++
			}
		}
		if used < c.least || used > c.most {
			t.Errorf("%s: %d of %d were written by templates, want %d to %d", c.what, used, len(c.bodies), c.least, c.most)
		}
	}
}

// TestLargeMessagesBecomeNoTemplates checks that messages larger than MaxTemplateSize do not become templates.
func TestLargeMessagesBecomeNoTemplates(t *testing.T) {
	plan, err := transcode.NewPlanner().Plan(reflect.TypeFor[corev1.ConfigMap](), schema.GroupVersionKind{})
	if err != nil {
		t.Fatal(err)
	}
	w := transcode.NewWriter()
	body, err := (&corev1.ConfigMap{Data: map[string]string{"a": strings.Repeat("a", transcode.MaxTemplateSize)}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, copied, err := w.Append(plan, nil, body); err != nil || copied || w.Templates() > 0 {
			t.Errorf("by a template: %t, error %v, %d templates; want no template and no error", copied, err, w.Templates())
		}
	}
}
