//go:build invariants

package encoding

import (
	"strings"
	"testing"

	"github.com/larder-io/larder/internal/invariants"
	"github.com/larder-io/larder/internal/registry/wire"
)

// TestWritesToBookmarksAreCaught checks that a write to the item that bookmarks share is detected when the next
// bookmark is built from it.
func TestWritesToBookmarksAreCaught(t *testing.T) {
	item := []byte(`{"metadata":{"resourceVersion":"1"}}`)
	made := bookmark{invariants.SealOf(item), item}
	e := &Encoder{Writer: wire.JSON(wire.Kind{Partial: true}), bookmark: func() (bookmark, error) { return made, nil }}
	const want = `{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"5"}}}` + "\n"
	if got, err := e.AppendBookmark(nil, 5, false); string(got) != want || err != nil {
		t.Fatalf("bookmark %q, error %v; want %q", got, err, want)
	}
	item[0]++
	defer func() {
		if text, _ := recover().(string); !strings.HasPrefix(text, "invariant violated: encoding: the item of bookmarks") {
			t.Errorf("panic %q", text)
		}
	}()
	e.AppendBookmark(nil, 6, false)
}
