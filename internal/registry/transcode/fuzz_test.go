package transcode_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"reflect"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/internal/registry/transcode"
)

// FuzzAppend transcodes any bytes. The result must equal upstream's, or be refused. Messages that upstream's code
// wrote must not be refused.
func FuzzAppend(f *testing.F) {
	types := []reflect.Type{
		reflect.TypeFor[corev1.Pod](), reflect.TypeFor[corev1.Secret](),
		reflect.TypeFor[coordinationv1.Lease](), reflect.TypeFor[appsv1.ControllerRevision](), reflect.TypeFor[corev1.PersistentVolume](),
	}
	planner := transcode.NewPlanner()
	plans := make([]*transcode.Plan, len(types))
	for i, t := range types {
		plan, err := planner.Plan(t, schema.GroupVersionKind{})
		if err != nil {
			f.Fatal(err)
		}
		plans[i] = plan
		for seed := range int64(3) {
			obj := reflect.New(t).Interface().(message)
			filler(seed).Fill(obj)
			body, err := obj.Marshal()
			if err != nil {
				f.Fatal(err)
			}
			f.Add(body, uint8(i))
		}
	}
	body, err := realPod(f).Marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(body, uint8(0))
	f.Add([]byte("\x0a\x03\x42\x01\x08"), uint8(0))                                  // a time that is cut short
	f.Add(append(binary.AppendUvarint(nil, 1<<35|10), "\x03\x0a\x01a"...), uint8(0)) // upstream uses half of the number
	f.Add([]byte("\x12\x0a\x0a\x01a\x12\x01b\x12\x02cd"), uint8(1))                  // an entry of a map with two values
	// An entry with a malformed Quantity before another one.
	f.Add([]byte("\x12\x0d\x0a\x0b\x0a\x01a\x12\x01\x0a\x12\x03\x0a\x011"), uint8(4))
	f.Fuzz(func(t *testing.T, body []byte, which uint8) {
		i := int(which) % len(types)
		got, _, err := plans[i].Append([]byte("head"), body)
		if !bytes.HasPrefix(got, []byte("head")) || err != nil && (len(got) != 4 || !errors.Is(err, transcode.ErrUnusual)) {
			t.Fatalf("%q and %v", got, err)
		}
		obj := reflect.New(types[i]).Interface().(message)
		if decodeErr := obj.Unmarshal(body); decodeErr != nil {
			if err == nil {
				t.Fatalf("%q of what is refused: %v", got, decodeErr)
			}
			return
		}
		want, jsonErr := json.Marshal(obj)
		if err == nil {
			if jsonErr != nil || !bytes.Equal(got[4:], want) {
				t.Fatalf("%s\n got %q\nwant %q, %v", types[i], got[4:], want, jsonErr)
			}
			return
		}
		if again, _ := obj.Marshal(); bytes.Equal(again, body) && jsonErr == nil {
			t.Fatalf("%s: refused what upstream wrote: %q", types[i], want)
		}
	})
}
