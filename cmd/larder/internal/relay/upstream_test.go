package relay

import (
	"slices"
	"strings"
	"testing"
)

// TestUpstreamsAreNamed checks that only one upstream may lack a name, and that client CAs of one upstream do not
// apply to another.
func TestUpstreamsAreNamed(t *testing.T) {
	for _, c := range []struct {
		upstreams, clientCAs string
		want                 []Upstream // nil: a mistake
	}{
		{"", "", []Upstream{{}}},
		{"file", "ca", []Upstream{{"", "file", "ca"}}},
		{"/tmp/a=b", "", []Upstream{{"", "/tmp/a=b", ""}}},
		{"a=file", "a=ca", []Upstream{{"a", "file", "ca"}}},
		{"a=x=y b=", "b=ca", []Upstream{{"a", "x=y", ""}, {"b", "", "ca"}}},
		{"file other", "", nil},
		{"a=file other", "", nil},
		{"a=file a=other", "", nil},
		{"a=file", "ca", nil},
		{"a=file", "b=ca", nil},
		{"a=file", "a=ca a=ca", nil},
		{"file", "ca ca", nil},
	} {
		got, err := ParseUpstreams(strings.Fields(c.upstreams), strings.Fields(c.clientCAs))
		if !slices.Equal(got, c.want) || (err == nil) != (c.want != nil) {
			t.Errorf("--upstream %s --client-ca-file %s: %v, %v", c.upstreams, c.clientCAs, got, err)
		}
	}
}
