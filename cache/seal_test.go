//go:build invariants

package cache

import (
	"fmt"
	"strings"
	"testing"
)

// TestWritesToSharedBytesAreCaught checks that writes to published bytes are detected when the bytes are next
// used, and when they are dropped.
func TestWritesToSharedBytesAreCaught(t *testing.T) {
	object := func() *Object {
		return NewObject(ObjectConfig{Key: "a", Revision: 1, Body: []byte("the body")}, NewResourceSchema("things", NewBudget(1<<20)))
	}
	encode := func(*Object) ([]byte, error) { return []byte("an encoding"), nil }
	build := func() ([]byte, error) { return []byte("a frame"), nil }
	body, encoding, frame := "cache: the body of an object", "cache: an encoding or frame", "cache: an encoding or frame"
	for name, c := range map[string]struct {
		publish func(o *Object, e *Event) []byte
		use     func(o *Object, e *Event)
		want    string
	}{
		"body, used":    {func(o *Object, _ *Event) []byte { return o.Body() }, func(o *Object, _ *Event) { o.Body() }, body},
		"body, retired": {func(o *Object, _ *Event) []byte { return o.Body() }, func(o *Object, _ *Event) { o.retire() }, body + " that leaves"},
		"encoding, used": {func(o *Object, _ *Event) []byte { b, _ := o.Encoding(1, encode); return b },
			func(o *Object, _ *Event) { o.Encoding(1, encode) }, encoding},
		"encoding, looked up": {func(o *Object, _ *Event) []byte { b, _ := o.Encoding(1, encode); return b },
			func(o *Object, _ *Event) { o.Kept(1) }, encoding},
		"encoding, dropped": {func(o *Object, _ *Event) []byte { b, _ := o.ExpensiveEncoding(1, encode); return b },
			func(o *Object, _ *Event) { o.retire() }, encoding + " that is dropped"},
		"frame, used": {func(_ *Object, e *Event) []byte { b, _ := e.Frame(1, build); return b },
			func(_ *Object, e *Event) { e.Frame(1, build) }, frame},
		"frame, dropped": {func(_ *Object, e *Event) []byte { b, _ := e.Frame(1, build); return b },
			func(_ *Object, e *Event) { e.frames.retire(e.schema().budget) }, frame + " that is dropped"},
	} {
		for _, writes := range []bool{false, true} {
			o := object()
			e := &Event{Object: o}
			b := c.publish(o, e)
			want := ""
			if writes {
				b[0]++
				want = c.want
			}
			if got := panics(func() { c.use(o, e) }); (got != "") != writes || !strings.HasPrefix(got, "invariant violated: "+want) && writes {
				t.Errorf("%s, written to: %v: got panic %q, want %q", name, writes, got, want)
			}
		}
	}
}

// panics returns the message that f panics with, or "".
func panics(f func()) (text string) {
	defer func() {
		if x := recover(); x != nil {
			text = fmt.Sprint(x)
		}
	}()
	f()
	return ""
}
