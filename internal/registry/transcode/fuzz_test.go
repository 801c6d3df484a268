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

// FuzzAppend transcodes arbitrary bytes. The result must equal upstream's, or be an error. Messages that upstream's code
// writes must be transcoded.
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
	f.Add([]byte("\x0a\x03\x42\x01\x08"), uint8(0))                                  // a truncated time
	f.Add(append(binary.AppendUvarint(nil, 1<<35|10), "\x03\x0a\x01a"...), uint8(0)) // upstream uses the low half of the number
	f.Add([]byte("\x12\x0a\x0a\x01a\x12\x01b\x12\x02cd"), uint8(1))                  // a map entry with two values
	// A map entry with a malformed Quantity before another entry.
	f.Add([]byte("\x12\x0d\x0a\x0b\x0a\x01a\x12\x01\x0a\x12\x03\x0a\x011"), uint8(4))
	f.Fuzz(func(t *testing.T, body []byte, which uint8) {
		i := int(which) % len(types)
		got, _, err := plans[i].Append([]byte("head"), body)
		if !bytes.HasPrefix(got, []byte("head")) || err != nil && (len(got) != 4 || !errors.Is(err, transcode.ErrUnusual)) {
			t.Fatalf("got %q, error %v; want the head alone with ErrUnusual, or no error", got, err)
		}
		obj := reflect.New(types[i]).Interface().(message)
		if decodeErr := obj.Unmarshal(body); decodeErr != nil {
			if err == nil {
				t.Fatalf("got %q from a message that upstream rejects: %v", got, decodeErr)
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
			t.Fatalf("%s: error %v for a message that upstream wrote: %q", types[i], err, want)
		}
	})
}
