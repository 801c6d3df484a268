package invariants

import (
	"testing"
	"unsafe"
)

func TestSealBreaksWithItsBytes(t *testing.T) {
	b := []byte("published")
	s := SealOf(b)
	s.Check(b, "it")
	Seal{}.Check(b, "what nobody sealed")
	for _, changed := range []string{"Published", "publishe", "published!", ""} {
		if broken(s, changed) != Enabled {
			t.Errorf("%q: broken %v in a build that checks: %v", changed, !Enabled, Enabled)
		}
	}
	if size := unsafe.Sizeof(s); !Enabled && size != 0 {
		t.Errorf("a seal takes %d bytes", size)
	}
}

// broken reports whether s is not of b.
func broken(s Seal, b string) (is bool) {
	defer func() { is = recover() != nil }()
	s.Check([]byte(b), "it")
	return false
}
