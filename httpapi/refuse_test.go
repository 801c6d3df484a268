package httpapi

import (
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	restful "github.com/emicklei/go-restful/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

// checkRefusal compares what is refused by headers with go-restful's choice.
func checkRefusal(t rapid.TB, accept, contentType string) {
	t.Helper()
	produces := []string{"application/json", "application/yaml", "application/json;stream=watch"}
	ws := new(restful.WebService)
	ws.Path("/x").Route(ws.PATCH("").To(func(*restful.Request, *restful.Response) {}).Consumes(patchTypes...).Produces(produces...))
	req := httptest.NewRequest("PATCH", "/x", nil)
	req.Header.Set("Accept", accept)
	req.Header.Set("Content-Type", contentType)

	want := http.StatusOK
	var refused restful.ServiceError
	if _, _, err := (restful.CurlyRouter{}).SelectRoute([]*restful.WebService{ws}, req); errors.As(err, &refused) {
		want = refused.Code
	}
	w := httptest.NewRecorder()
	ok := func(http.ResponseWriter, *http.Request) {}
	consuming(patchTypes, producing(produces, http.HandlerFunc(ok)).ServeHTTP)(w, req)
	if w.Code != want {
		t.Errorf("Accept %q, Content-Type %q: %d, go-restful %d", accept, contentType, w.Code, want)
	}
}

func TestHeadersAreRefusedAsByGoRestful(t *testing.T) {
	// The pieces that headers are made of, and what may stand between them.
	pieces := append([]string{"", "*/*", "application/*", "application/json", "application/yaml", "application/cbor",
		"application/apply-patch+cbor", "text/html", "a", ";stream=watch", ";q=0.1", "; charset=utf-8", ",", ";", " ", "\t"}, patchTypes...)
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

// TestOversizedBodiesAreAnswered holds that a client which is still sending reads
// why it should not.
func TestOversizedBodiesAreAnswered(t *testing.T) {
	_, server := newLarder(t)
	tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer tr.CloseIdleConnections()
	client := &http.Client{Transport: tr}
	url := "https://" + server.config.Listener.Addr().String() + maps_
	for _, size := range []int{3<<20 + 1, 4 << 20, 16 << 20} {
		for name, body := range map[string]io.Reader{
			"sized":   strings.NewReader(strings.Repeat(" ", size)),
			"chunked": io.MultiReader(strings.NewReader(strings.Repeat(" ", size))),
		} {
			resp, err := client.Post(url, "application/json", body)
			if err != nil {
				t.Errorf("%d bytes, %s: %v", size, name, err)
				continue
			}
			data, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil {
				t.Errorf("%d bytes, %s: %v", size, name, err)
				continue
			}
			var status metav1.Status
			decode(t, data, &status)
			if resp.StatusCode != http.StatusRequestEntityTooLarge || status.Reason != metav1.StatusReasonRequestEntityTooLarge ||
				status.Message != "Request entity too large: limit is 3145728" {
				t.Errorf("%d bytes, %s: %d %s", size, name, resp.StatusCode, data)
			}
		}
	}
}
