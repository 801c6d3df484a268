package writes

import (
	"strings"
	"testing"
)

// TestManagersAreNamedAsUpstreamNamesThem checks the manager's name in managedFields.
func TestManagersAreNamedAsUpstreamNamesThem(t *testing.T) {
	for _, c := range []struct{ given, agent, want string }{
		{"given", "kubectl/v1", "given"},
		{"", "kubectl/v1.36 (linux)", "kubectl"},
		{"", "", ""},
		{"", "no slash", "no slash"},
		{"", "a\tb\x00c\u200bd/x", "abcd"},
		{"", strings.Repeat("ä", 100), strings.Repeat("ä", 64)},
		{"", strings.Repeat("x", 127) + "äy", strings.Repeat("x", 127)},
		{"", "bad\xff/x", "bad\uFFFD"},
	} {
		if got := managerOf(c.given, []byte(c.agent)); got != c.want {
			t.Errorf("%q and %q: %q, want %q", c.given, c.agent, got, c.want)
		}
	}
}
