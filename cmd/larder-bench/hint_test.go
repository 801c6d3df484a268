package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/larder-io/larder/bench/benchtest"
)

// TestErrorsSayWhatToDo checks the hints for faults of servers, kubeconfigs and flags.
func TestErrorsSayWhatToDo(t *testing.T) {
	server, kubeconfig := benchtest.Start(t)
	text, err := os.ReadFile(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	// with returns the kubeconfig with every match of an expression replaced.
	with := func(expression, other string) string {
		path := filepath.Join(t.TempDir(), "kubeconfig")
		if err := os.WriteFile(path, regexp.MustCompile(expression).ReplaceAll(text, []byte(other)), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	respondsWith := func(status int) string {
		s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		t.Cleanup(s.Close)
		return benchtest.Kubeconfig(t, s)
	}
	other := httptest.NewTLSServer(http.NotFoundHandler())
	plain := httptest.NewServer(http.NotFoundHandler())
	gone := httptest.NewTLSServer(http.NotFoundHandler())
	gone.Close()
	t.Cleanup(func() { other.Close(); plain.Close() })
	address := func(s *httptest.Server) string {
		return strings.TrimPrefix(strings.TrimPrefix(s.URL, "https://"), "http://")
	}
	hang := make(chan struct{})
	slow := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hang }))
	t.Cleanup(func() { close(hang); slow.Close() })
	own := regexp.QuoteMeta(address(server.Server))
	for want, args := range map[string][]string{
		"certificate-authority":            {"read", "/version", "--kubeconfig", with(`, certificate-authority-data: [^}]*`, "")},
		"tls-server-name":                  {"read", "/version", "--kubeconfig", with(`127\.0\.0\.1`, "localhost")},
		"check that the server is running": {"read", "/version", "--kubeconfig", with(own, address(gone))},
		"does not use TLS":                 {"read", "/version", "--kubeconfig", with(own, address(plain))},
		"https:// in the kubeconfig":       {"read", "/version", "--kubeconfig", with("https://", "http://")},
		"cannot be resolved":               {"read", "/version", "--kubeconfig", with(`127\.0\.0\.1`, "no.such.host.invalid")},
		"does not know":                    {"read", "/version", "--kubeconfig", respondsWith(http.StatusUnauthorized)},
		"bind a role":                      {"watchlist", "--kubeconfig", respondsWith(http.StatusForbidden)},
		"kubectl get --raw":                {"read", "/none", "--kubeconfig", respondsWith(http.StatusNotFound)},
		"--accept application/json":        {"read", "/none", "--kubeconfig", respondsWith(http.StatusNotAcceptable)},
		"--retry-after":                    {"read", "/none", "--kubeconfig", respondsWith(http.StatusTooManyRequests)},
		"--timeout":                        {"read", "/version", "--timeout=50ms", "--kubeconfig", benchtest.Kubeconfig(t, slow)},
		"with larder-bench seed":           {"mixed", "--kubeconfig", kubeconfig},
		"or reduce these numbers":          {"watch", "--watchers=1", "--changes=2", "--kubeconfig", kubeconfig},
		"check --pid":                      {"read", "/version", "--kubeconfig", kubeconfig, "--pid=999999999"},
	} {
		_, _, err := run(t, args...)
		if err == nil {
			t.Errorf("%v: no error", args)
		} else if got := adviceOn(err.Error()); !strings.Contains(got, want) {
			t.Errorf("%v: %v: what to do is %q, want %q", args, err, got, want)
		}
	}
	for want, args := range map[string][]string{
		"usage: larder-bench read PATH": {"read"}, "--help lists the flags": {"watchlist", "--rate=5"},
		"PATH \"pods\"": {"read", "pods", "--kubeconfig", kubeconfig}, "--clients must be at least 1": {"read", "/version", "--clients=0", "--kubeconfig", kubeconfig},
		"omit --duration and --rate": {"read", "/version", "--stages=1s:5/s", "--rate=5", "--kubeconfig", kubeconfig},
		"omit --requests":            {"read", "/version", "--duration=1s", "--requests=5", "--kubeconfig", kubeconfig},
		"omit --clients":             {"read", "/version", "--stages=1s:5", "--clients=5", "--kubeconfig", kubeconfig},
		"plan rates":                 {"write", "--duration=1s", "--kubeconfig", kubeconfig},
		"needs --pid":                {"read", "/version", "--max-rss=1", "--kubeconfig", kubeconfig}, "no result has this name": {"mixed", "--max-p99=nobody=1s", "--kubeconfig", kubeconfig},
		"name one, as in --max-p99 B1": {"compare", "--max-p99=1s"}, "there is no directory": {"read", "/version", "--json=/no/such/file", "--kubeconfig", kubeconfig},
	} {
		if _, _, err := run(t, args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
	if adviceOn("anything") != "" {
		t.Error("an unknown error has a hint")
	}
}
