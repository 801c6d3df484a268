package transcode_test

import (
	"bytes"
	"encoding/json"
	"math/rand"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/randfill"

	"github.com/larder-io/larder/internal/registry/transcode"
)

// plainFiller is a filler whose texts need no escapes.
func plainFiller(seed int64) *randfill.Filler {
	return filler(seed).Funcs(
		func(s *string, c randfill.Continue) { *s = strings.Repeat("plain ", 1+c.Intn(8)) },
		func(i *intstr.IntOrString, c randfill.Continue) { *i = intstr.FromString("port") },
		func(f *metav1.FieldsV1, c randfill.Continue) { f.SetRawBytes([]byte(`{"f:spec":{"f:a":{}}}`)) },
		func(r *runtime.RawExtension, c randfill.Continue) { r.Raw = []byte(`{"a":"b"}`) },
	)
}

// TestNeighbours changes bytes of plain messages of every kind, whatever these say, and wants of each
// what is written for it alone. What was written before must not show.
func TestNeighbours(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	planner, w := transcode.NewPlanner(), transcode.NewWriter()
	used, walked := 0, 0
	for _, typ := range kinds() {
		plan, err := planner.Plan(typ)
		if err != nil {
			t.Fatal(err)
		}
		obj := reflect.New(typ).Interface().(message)
		if plainFiller(1).Fill(obj); typ == reflect.TypeFor[corev1.Pod]() {
			obj = realPod(t)
		}
		body, err := obj.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		for i := range 60 {
			changed := bytes.Clone(body)
			for range min(i, 3, len(body)) {
				changed[random.Intn(len(body))] = "az09\x00\x01\x08\x0a\x12\x1a"[random.Intn(10)]
			}
			want, plain, err := plan.Append([]byte("head"), changed)
			if err != nil || !plain {
				continue
			}
			got, by, _ := w.Append(plan, []byte("head"), changed)
			if !bytes.Equal(got, want) {
				t.Fatalf("%s, by a stencil: %t\n got %q\nwant %q", typ, by, got, want)
			}
			if by {
				used++
			} else {
				walked++
			}
		}
	}
	t.Logf("%d by stencils, %d without", used, walked)
	if used < 100 || walked < 100 {
		t.Errorf("%d messages were written by stencils and %d without: too few to tell", used, walked)
	}
}

// TestStencils: pods that are alike are written by stencils, of which there are few, also after
// others that are not alike.
func TestStencils(t *testing.T) {
	plan, err := transcode.NewPlanner().Plan(reflect.TypeFor[corev1.Pod]())
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
		{"not alike", pods(t, 300, false), 0, 0},
		{"alike again", pods(t, 1200, true), 500, 1200},
	} {
		used := 0
		for _, body := range c.bodies {
			got, by, stencils := w.Append(plan, nil, body)
			var pod corev1.Pod
			if err := pod.Unmarshal(body); err != nil {
				t.Fatal(err)
			}
			if want, err := json.Marshal(&pod); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%s, by a stencil: %t, %v\n got %q\nwant %q", c.what, by, err, got, want)
			}
			if stencils > transcode.MostStencils {
				t.Fatalf("%d stencils", stencils)
			}
			if by {
				used++
			}
		}
		if used < c.least || used > c.most {
			t.Errorf("%s: %d of %d were written by stencils, want %d to %d", c.what, used, len(c.bodies), c.least, c.most)
		}
	}
}

// TestLargeMessagesBecomeNoStencils: what is kept of messages is bounded.
func TestLargeMessagesBecomeNoStencils(t *testing.T) {
	plan, err := transcode.NewPlanner().Plan(reflect.TypeFor[corev1.ConfigMap]())
	if err != nil {
		t.Fatal(err)
	}
	w := transcode.NewWriter()
	body, err := (&corev1.ConfigMap{Data: map[string]string{"a": strings.Repeat("a", transcode.LargestStencil)}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, used, stencils := w.Append(plan, nil, body); used || stencils > 0 {
			t.Errorf("used: %t, %d stencils", used, stencils)
		}
	}
}
