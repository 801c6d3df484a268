package relay

import (
	"net/http"
	"net/url"
	"testing"
)

// TestAnswersAreBelowThePrefix checks that an upstream's paths in headers become those at which the relay serves
// them.
func TestAnswersAreBelowThePrefix(t *testing.T) {
	for _, c := range []struct{ upstream, prefix, location, want string }{
		{"https://up", "", "/a%2Fb?c=%2F#d", "/a%2Fb?c=%2F#d"},
		{"https://up", "/clusters/a", "/a%2Fb?c=%2F#d", "/clusters/a/a%2Fb?c=%2F#d"},
		{"https://up", "/clusters/a", "https://up/x", "/clusters/a/x"},
		{"https://up", "/clusters/a", "https://elsewhere/x", "https://elsewhere/x"},
		{"https://up", "/clusters/a", "x/", "x/"},
		{"https://up/base/", "/clusters/a", "/base/x", "/clusters/a/x"},
		{"https://up/base", "", "https://up/base/x", "/x"},
		{"https://up/base", "/clusters/a", "/login", "/login"},
		{"https://up/base", "/clusters/a", "/base2/x", "/base2/x"},
		{"https://up/base", "/clusters/a", "/base?x=1", "/clusters/a?x=1"},
		{"https://up/base", "/clusters/a", "/base", "/clusters/a"},
		{"https://up", "/clusters/a", "", ""},
	} {
		at, err := url.Parse(c.upstream)
		if err != nil {
			t.Fatal(err)
		}
		header := http.Header{}
		if c.location != "" {
			header.Set("Location", c.location)
		}
		(&forwarding{upstream: at, prefix: c.prefix}).rewriteLocation(header)
		if got := header.Get("Location"); got != c.want {
			t.Errorf("%q of %s below %q becomes %q, want %q", c.location, c.upstream, c.prefix, got, c.want)
		}
	}
	for prefix, want := range map[string]int{"": 1, "/clusters/a": 0} {
		header := http.Header{"Set-Cookie": {"session=secret; Path=/"}}
		if (&forwarding{upstream: new(url.URL), prefix: prefix}).rewriteLocation(header); len(header["Set-Cookie"]) != want {
			t.Errorf("cookies below %q: %q", prefix, header["Set-Cookie"])
		}
	}
}

// TestPathsStayInTheUpstream checks that requests for an upstream whose URL has a path cannot reach another server at
// the same host.
func TestPathsStayInTheUpstream(t *testing.T) {
	u := newUpstream(t, nil)
	config := u.config()
	config.Host += "/base"
	s := serve(t, config)
	tr := newTransport(t, s.tlsFor(t, "user"), false)
	for path, code := range map[string]int{
		"/../other/api": http.StatusBadRequest, "/%2e%2e/other/api": http.StatusBadRequest, "/x/../../other": http.StatusBadRequest, "/..": http.StatusBadRequest,
		"/../base2/api": http.StatusBadRequest, "//../..//other": http.StatusBadRequest,
		"/x/../api": http.StatusOK, "/..x": http.StatusOK, "/": http.StatusOK,
	} {
		req := &http.Request{Method: http.MethodGet, URL: &url.URL{Scheme: "https", Host: s.addr, Opaque: path}, Header: http.Header{}}
		resp := send(t, tr, req)
		resp.Body.Close()
		if resp.StatusCode != code {
			t.Errorf("%s: %d, want %d", path, resp.StatusCode, code)
		}
	}
	for range 3 {
		<-u.received
	}
	if len(u.received) > 0 {
		t.Errorf("the upstream also hears %s", (<-u.received).uri)
	}
}
