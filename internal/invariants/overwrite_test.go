package invariants

import (
	"strings"
	"testing"
)

func TestOverwriteFillsTheWholeCapacity(t *testing.T) {
	for _, size := range []int{0, 1, len(Pattern) - 1, len(Pattern), len(Pattern) + 1, 10_000} {
		b := make([]byte, size/2, size)
		Overwrite(b)
		want := strings.Repeat(Pattern, size/len(Pattern)+1)[:size]
		if got := string(b[:cap(b)]); got != want {
			t.Errorf("%d bytes: %q", size, got)
		}
	}
}
