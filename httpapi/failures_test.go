package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/larder-io/larder/httpapi/statuspage"
	"github.com/larder-io/larder/internal/proctest"
)

// TestServerErrorsAreListed checks that the status page lists responses with a 5xx status, the newest first, and no
// others.
func TestServerErrorsAreListed(t *testing.T) {
	long := strings.Repeat("x", 10_000)
	fail := func(w http.ResponseWriter, req *http.Request) {
		switch req.URL.Path {
		case "/fails/status":
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(503)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","message":"<b>not now</b>","code":503}`)
		case "/fails/text":
			http.Error(w, "no luck", 500)
		case "/fails/long":
			http.Error(w, long, http.StatusBadGateway)
		case "/fails/panic":
			panic("broken")
		default:
			http.NotFound(w, req)
		}
	}
	p := newPairWith(t, func(c *Config) {
		c.StatusPage = true
		c.Handlers = map[string]http.Handler{"/fails/": http.HandlerFunc(fail)}
	})
	for _, path := range []string{"/fails/not", "/fails/status", "/fails/text", "/fails/long", "/fails/panic", "/api/v1/nonsense"} {
		p.ours.call(t, call{method: "GET", path: path})
	}
	var s statuspage.Snapshot
	if err := json.Unmarshal(p.ours.must(t, call{method: "GET", path: statuspage.DataPath}).body, &s); err != nil {
		t.Fatal(err)
	}
	if s.Failed != 4 || len(s.Failures) != 4 {
		t.Fatalf("got %d failures, listed %+v, want 4", s.Failed, s.Failures)
	}
	for i, want := range []statuspage.Failure{
		{Code: 500, Path: "/fails/panic", Message: "This request caused apiserver to panic. Look in the logs for details."},
		{Code: 502, Path: "/fails/long", Message: long[:300]},
		{Code: 500, Path: "/fails/text", Message: "no luck"},
		{Code: 503, Path: "/fails/status", Message: "<b>not now</b>"},
	} {
		got := s.Failures[i]
		if got.Code != want.Code || got.Path != want.Path || got.Message != want.Message || got.Method != "GET" || got.UserAgent != "tester/1.0" || got.User == "" || got.AuditID == "" {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	for range 100 {
		p.ours.call(t, call{method: "GET", path: "/fails/text"})
	}
	count := func() (all int64, listed int) {
		body := p.ours.must(t, call{method: "GET", path: statuspage.DataPath}).body
		s = statuspage.Snapshot{}
		if err := json.Unmarshal(body, &s); err != nil {
			t.Fatal(err)
		}
		return s.Failed, len(s.Failures)
	}
	proctest.Eventually(t, "all are counted", func() error { // a snapshot may be a second old
		if all, listed := count(); all != 104 || listed != 50 {
			return fmt.Errorf("got %d failures, of which %d are listed, want 104 and 50", all, listed)
		}
		return nil
	})
}
