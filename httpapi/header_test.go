package httpapi

import (
	"net/http"
	"strings"
	"testing"
)

func TestInspect(t *testing.T) {
	for block, want := range map[string]headerFacts{
		"": {},
		"Host: h\r\nAccept: a\r\nAccept: b\r\n\r\n": {},
		"A-_.~!#$%&'*+^`|1: b\r\n\r\n":              {},
		"Impersonate-User: x\r\n\r\n":               {impersonates: true},
		"iMPERSONATE-eXTRA-a: x\r\n\r\n":            {impersonates: true},
		"Impersonate: x\r\n\r\n":                    {},
		"Host: a\r\nhost: b\r\n":                    {malformed: "repeated Host header"},
		"authorization: a\r\nAUTHORIZATION: b\r\n":  {malformed: "repeated Authorization header"},
		"authorization: a\nAUTHORIZATION: b\r\n":    {malformed: "malformed header line"},
		"Content-Type: a\r\nContent-type: b\r\n":    {malformed: "repeated Content-Type header"},
		"transfer-encoding: Chunked \r\n":           {},
		"Transfer-Encoding: identity\r\n":           {malformed: "unsupported transfer encoding"},
		" A: b\r\n":                                 {malformed: "malformed header name"},
		"A : b\r\n":                                 {malformed: "malformed header name"},
		"A\r\n":                                     {malformed: "malformed header name"},
		"\x80: b\r\n":                               {malformed: "malformed header name"},
	} {
		if got := inspect([]byte(block)); got != want {
			t.Errorf("%q: %+v, want %+v", block, got, want)
		}
	}
}

func TestTablePrefersTheMorePrecisePath(t *testing.T) {
	routes := newTable()
	named := func(name string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Name", name) })
	}
	routes.handlePrefix("/a/", named("short"))
	routes.handlePrefix("/a/b/", named("long"))
	routes.handle("/a/b/", named("exact"))
	for path, want := range map[string]string{"/a/": "short", "/a/x": "short", "/a/b/c": "long", "/a/b/": "exact", "/a": "", "/ab/": ""} {
		h, ok := routes.nonResource(path)
		if ok != (want != "") {
			t.Errorf("%s: found %v", path, ok)
		}
		if !ok {
			continue
		}
		w := newRecorder()
		h.ServeHTTP(w, nil)
		if got := w.Header().Get("Name"); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}

func TestAuditIDsAreRandomUUIDs(t *testing.T) {
	a, b := newAuditID(), newAuditID()
	if a == b || len(a) != 36 || a[14] != '4' || !strings.ContainsRune("89ab", rune(a[19])) || strings.Count(a, "-") != 4 {
		t.Errorf("%s %s", a, b)
	}
}
