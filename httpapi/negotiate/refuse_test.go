package negotiate

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	restful "github.com/emicklei/go-restful/v3"
	"pgregory.net/rapid"
)

// patches are the content types that PATCH takes.
var patches = []string{"application/json-patch+json", "application/merge-patch+json", "application/strategic-merge-patch+json", "application/apply-patch+yaml"}

// checkRefusal compares refusals because of headers with go-restful's.
func checkRefusal(t rapid.TB, accept, contentType string) {
	t.Helper()
	produces := []string{"application/json", "application/yaml", "application/json;stream=watch"}
	ws := new(restful.WebService)
	ws.Path("/x").Route(ws.PATCH("").To(func(*restful.Request, *restful.Response) {}).Consumes(patches...).Produces(produces...))
	req := httptest.NewRequest("PATCH", "/x", nil)
	req.Header.Set("Accept", accept)
	req.Header.Set("Content-Type", contentType)

	want := http.StatusOK
	var refused restful.ServiceError
	if _, _, err := (restful.CurlyRouter{}).SelectRoute([]*restful.WebService{ws}, req); errors.As(err, &refused) {
		want = refused.Code
	}
	got := http.StatusOK
	switch {
	case !Consumes(contentType, patches):
		got = http.StatusUnsupportedMediaType
	case !Accepts(accept, produces):
		got = http.StatusNotAcceptable
	}
	if got != want {
		t.Errorf("Accept %q, Content-Type %q: %d, go-restful %d", accept, contentType, got, want)
	}
}

func TestHeadersAreRefusedAsByGoRestful(t *testing.T) {
	// Pieces of headers, and separators.
	pieces := append([]string{"", "*/*", "application/*", "application/json", "application/yaml", "application/cbor",
		"application/apply-patch+cbor", "text/html", "a", ";stream=watch", ";q=0.1", "; charset=utf-8", ",", ";", " ", "\t"}, patches...)
	header := rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), 0, 6).Draw(t, "pieces"), "")
	})
	rapid.Check(t, func(rt *rapid.T) {
		checkRefusal(rt, header.Draw(rt, "Accept"), header.Draw(rt, "Content-Type"))
	})
}

func FuzzRefusals(f *testing.F) {
	f.Add("text/html, */*;q=0.8", "application/merge-patch+json;charset=utf-8")
	f.Add(",;", "application/json-patch+json,")
	f.Fuzz(func(t *testing.T, accept, contentType string) { checkRefusal(t, accept, contentType) })
}
