package bench_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/benchtest"
)

// TestHTTP2 sends requests over shared connections, also to a server without HTTP/2, which is an error.
func TestHTTP2(t *testing.T) {
	var requests atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 || r.Header.Get("Authorization") != "Bearer secret" || r.Header.Get("Accept") != bench.JSON {
			t.Errorf("got a request over %s with headers %v", r.Proto, r.Header)
		}
		if requests.Add(1) == 3 {
			w.WriteHeader(http.StatusTeapot)
		}
		w.Write(make([]byte, 400))
		w.(http.Flusher).Flush()
		w.Write(make([]byte, 600))
	}))
	server.EnableHTTP2 = true
	opened := countConnections(server)
	server.StartTLS()
	defer server.Close()
	target, err := bench.NewTarget(benchtest.Kubeconfig(t, server))
	if err != nil {
		t.Fatal(err)
	}
	target.UseHTTP2(4)
	result, err := bench.Read(t.Context(), target, bench.ReadConfig{Path: "/api/v1/pods", Accept: bench.JSON, Load: bench.Load{Operations: 99, Clients: 8}})
	if err != nil {
		t.Fatal(err)
	}
	if result.Ops != 99 || result.Errors != 1 || result.Bytes != 98_000 || requests.Load() != 100 {
		t.Errorf("%d requests, %d errors (%s), %d bytes, server saw %d; want 99, 1, 98000 and 100, one for the warm-up", result.Ops, result.Errors, result.FirstError, result.Bytes, requests.Load())
	}
	if got := opened.Load(); got > 3 {
		t.Errorf("%d connections, want one for the warm-up and two for eight clients", got)
	}
	other := httptest.NewTLSServer(http.NotFoundHandler())
	defer other.Close()
	if target, err = bench.NewTarget(benchtest.Kubeconfig(t, other)); err != nil {
		t.Fatal(err)
	}
	target.UseHTTP2(4)
	if _, err := bench.Read(t.Context(), target, bench.ReadConfig{Path: "/", Load: bench.Load{Operations: 1, Clients: 1}}); err == nil || !strings.Contains(err.Error(), "does not support HTTP/2") {
		t.Errorf("a server without HTTP/2: error %v", err)
	}
}
