package httpapi

import "testing"

// TestPrefixesOfServers checks that a prefix has one spelling, and is removed once. All other targets belong to no
// server.
func TestPrefixesOfServers(t *testing.T) {
	servers := map[string]bool{"a": true, "b": true}
	for _, c := range []struct{ target, name, rest string }{
		{"/clusters/a", "a", "/"},
		{"/clusters/a/", "a", "/"},
		{"/clusters/a?watch=1", "a", "/?watch=1"},
		{"/clusters/a/api/v1/pods?x=/clusters/b/", "a", "/api/v1/pods?x=/clusters/b/"},
		{"/clusters/a/clusters/b/api", "a", "/clusters/b/api"},
		{"/clusters/a/../b/api", "a", "/../b/api"},
		{"/clusters/a/%2e%2e/b/api", "a", "/%2e%2e/b/api"},
		{"/clusters/a//api", "a", "//api"},
	} {
		if name, rest := splitTarget(c.target); name != c.name || rest != c.rest {
			t.Errorf("%q: %q of %q, want %q of %q", c.target, rest, name, c.rest, c.name)
		}
	}
	for _, target := range []string{
		"/clusters", "/clusters/", "/clusters//a/api", "//clusters/a/api", "/clusters/c/api", "/clusters/ab/api", "/clusters/A/api", "/Clusters/a/api",
		"/clusters/%61/api", "/%63lusters/a/api", "/clusters%2Fa/api", "/clusters/a%2Fapi", "/clusters/./a/api", "/clusters/a;b/api", "/clusters/a#/api",
		"/x/../clusters/a/api", "https://host/clusters/a/api", "clusters/a/api", "/?/clusters/a/", "*", "",
	} {
		if name, _ := splitTarget(target); servers[name] {
			t.Errorf("%q is for %q", target, name)
		}
	}
}
