//go:build invariants

package encoding

import (
	"strings"
	"testing"

	"github.com/larder-io/larder/internal/invariants"
)

// TestWritesToBookmarksAreCaught: the item of bookmarks that was written to is found out when
// the next bookmark is made of it.
func TestWritesToBookmarksAreCaught(t *testing.T) {
	item := []byte("an item")
	e := &Encoder{bookmarks: [2]bookmark{{invariants.SealOf(item), item}}}
	if got, err := e.bookmark(false); string(got) != "an item" || err != nil {
		t.Fatalf("%q, %v", got, err)
	}
	item[0]++
	defer func() {
		if text, _ := recover().(string); !strings.HasPrefix(text, "invariant violated: encoding: the item of bookmarks") {
			t.Errorf("panic %q", text)
		}
	}()
	e.bookmark(false)
}
