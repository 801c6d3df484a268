package invariants

import (
	"strings"
	"testing"
)

func TestOverwrite(t *testing.T) {
	for _, size := range []int{0, 1, len(Poison) - 1, len(Poison), len(Poison) + 1, 10_000} {
		b := make([]byte, size/2, size)
		Overwrite(b)
		want := strings.Repeat(Poison, size/len(Poison)+1)[:size]
		if got := string(b[:cap(b)]); got != want {
			t.Errorf("%d bytes: %q", size, got)
		}
	}
}
