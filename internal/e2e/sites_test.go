package e2e_test

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/larder-io/larder/internal/e2e/e2etest"
)

// TestOtherSitesChangeNothing checks that a page of another site changes nothing outside the API. A browser sends such
// a page's requests with a client certificate, or kubectl proxy with its own credentials. Programs, the server's own
// pages and those that
// --cors-allowed-origins allows are not restricted, and the API responds as kube-apiserver does.
func TestOtherSitesChangeNothing(t *testing.T) {
	p := serve(t, "--unsafe-no-fsync", "--checkpoints", "--cors-allowed-origins=^https://friend[.]example[.]com$")
	client := e2etest.HTTPClient(t, p.config()) // has the administrator's certificate
	request := func(method, path string, header ...string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, p.url()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	var index struct{ Paths []string }
	if _, body := request("GET", "/"); json.Unmarshal([]byte(body), &index) != nil || len(index.Paths) < 50 {
		t.Fatal(body)
	}
	paths := append(index.Paths, "/larder/", "/larder/checkpoints/a", "/larder/checkpoints/a/reset", "/debug/flags/v", "/nothing")
	if code, body := request("POST", "/larder/checkpoints/a"); code != http.StatusCreated {
		t.Fatal(code, body)
	}
	const rejection = "cross-origin request detected"
	pages := [][]string{
		{"Sec-Fetch-Site", "cross-site", "Origin", "https://evil.example.com"}, {"Sec-Fetch-Site", "same-site", "Origin", "https://other.example.com"},
		{"Sec-Fetch-Site", "cross-site", "Origin", "null"}, {"Sec-Fetch-Site", "cross-site"}, {"Origin", "https://evil.example.com"},
	}
	for _, path := range paths {
		if strings.HasPrefix(path, "/livez/") || strings.HasPrefix(path, "/readyz/") || strings.HasPrefix(path, "/healthz/") {
			continue // covered by the path above
		}
		for _, method := range []string{"POST", "PUT", "PATCH", "DELETE"} {
			for _, page := range pages {
				if code, body := request(method, path, page...); code != http.StatusForbidden || !strings.Contains(body, rejection) || !strings.Contains(body, `"kind":"Status"`) {
					t.Errorf("%s %s from %q: %d %.200s", method, path, page, code, body)
				}
			}
		}
	}
	if code, body := request("GET", "/larder/checkpoints"); code != http.StatusOK || strings.Count(body, `"name"`) != 1 {
		t.Errorf("checkpoints after requests of other sites: %d %s", code, body)
	}
	for _, page := range [][]string{
		nil, {"Sec-Fetch-Site", "same-origin", "Origin", p.url()}, {"Sec-Fetch-Site", "none"}, {"Origin", p.url()},
		{"Sec-Fetch-Site", "cross-site", "Origin", "https://friend.example.com"},
	} {
		if code, body := request("POST", "/larder/checkpoints/a/reset", page...); code != http.StatusOK {
			t.Errorf("reset from %q: %d %s", page, code, body)
		}
	}
	for _, method := range []string{"GET", "HEAD", "OPTIONS"} {
		if code, body := request(method, "/larder/checkpoints", slices.Concat(pages[0])...); code == http.StatusForbidden {
			t.Errorf("%s from another site's page: %d %s", method, code, body)
		}
	}
	// Another site's page may send this, but not read the response.
	if code, body := request("DELETE", "/api/v1/namespaces/default/configmaps/nothing", pages[0]...); code != http.StatusNotFound {
		t.Errorf("a request for the API: %d %s", code, body)
	}
	for _, path := range []string{"/larder/status", "/larder/checkpoints", "/api"} {
		req, _ := http.NewRequestWithContext(t.Context(), "GET", p.url()+path, nil)
		req.Header.Set("Origin", "https://evil.example.com")
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if got := resp.Header.Get("Access-Control-Allow-Origin"); got != "" {
			t.Errorf("%s may be read from origin %s", path, got)
		}
	}
}
