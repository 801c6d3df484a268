//go:build invariants

package reads

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/internal/registry/wire"
)

// TestWritesToPiecesAreCaught checks that a write to a piece that lists share is detected when the piece is next
// sent, and when it is dropped.
func TestWritesToPiecesAreCaught(t *testing.T) {
	v := configMapView(t)
	var objects []*cache.Object
	for n := range 40 {
		objects = append(objects, configMap(t, v, fmt.Sprintf("ns/c%04d", n), int64(n+1), 20000))
	}
	for name, use := range map[string]func(s *Stitcher, l *stitchedList){
		"sent": func(_ *Stitcher, l *stitchedList) { l.WriteTo(io.Discard) },
		"dropped": func(s *Stitcher, _ *stitchedList) {
			for s.order.Len() > 0 {
				s.dropLocked(s.order.Back())
			}
		},
	} {
		for _, writes := range []bool{false, true} {
			s := NewStitcher(1 << 30)
			l, err := s.stitch(v.Encoder(encoding.JSON, encoding.Full), wire.ListMeta{Revision: 1}, objects)
			if err != nil || s.order.Len() == 0 {
				t.Fatalf("%v, %d pieces are kept", err, s.order.Len())
			}
			if writes {
				l.pieces[0].data[3]++
			}
			if got := panicOf(func() { use(s, l) }); strings.Contains(got, "httpapi: a piece of a compressed list") != writes {
				t.Errorf("%s, written to: %v: panic %q", name, writes, got)
			}
		}
	}
}

// panicOf returns the panic of f, "" if it has none.
func panicOf(f func()) (text string) {
	defer func() {
		if x := recover(); x != nil {
			text = fmt.Sprint(x)
		}
	}()
	f()
	return ""
}
