package bench_test

import (
	"bytes"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/larder-io/larder/bench"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// kubeconfig writes a kubeconfig for a test server.
func kubeconfig(t *testing.T, server *httptest.Server) string {
	t.Helper()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: u, user: {token: secret}}]
`, server.URL, base64.StdEncoding.EncodeToString(ca))
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReadCountsWhatItDid(t *testing.T) {
	var hits, accepted atomic.Int64
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := hits.Add(1)
		if r.Header.Get("Accept") == bench.JSON && r.Header.Get("Authorization") == "Bearer secret" {
			accepted.Add(1)
		}
		if n == 5 {
			w.WriteHeader(http.StatusTeapot)
			return
		}
		w.Write(make([]byte, 1000))
	}))
	defer server.Close()
	target, err := bench.NewTarget(kubeconfig(t, server))
	if err != nil {
		t.Fatal(err)
	}
	target.Process = bench.Process{PID: os.Getpid()}

	result, err := bench.Read(t.Context(), target, bench.ReadConfig{
		Name: "list", Path: "/api/v1/pods", Accept: bench.JSON, Requests: 11, Clients: 2,
	})
	if err != nil {
		t.Fatal(err)
	}
	if hits.Load() != 12 || accepted.Load() != 12 {
		t.Errorf("server saw %d requests, %d with the right headers; want 12 of 12: 11 and one to warm up", hits.Load(), accepted.Load())
	}
	if result.Ops != 11 || result.Errors != 1 || result.Bytes != 10_000 {
		t.Errorf("got %d requests, %d errors, %d bytes; want 11, 1, 10000", result.Ops, result.Errors, result.Bytes)
	}
	if !strings.Contains(result.FirstError, "418") {
		t.Errorf("first error %q does not say 418", result.FirstError)
	}
	if n := result.Latency.TotalCount(); n != 10 {
		t.Errorf("histogram has %d values, want the 10 successes", n)
	}
	if result.Server.RSS == 0 || result.Server.PeakRSS < result.Server.RSS {
		t.Errorf("implausible memory %+v", result.Server)
	}
	var out bytes.Buffer
	if err := bench.WriteText(&out, result); err != nil {
		t.Fatal(err)
	}
	if rows := strings.Split(strings.TrimSpace(out.String()), "\n"); len(rows) != 3 {
		t.Errorf("want a head, a row and the first error, got:\n%s", out.String())
	}
}

func TestReadFailsWhenTheServerIsNotThere(t *testing.T) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	path := kubeconfig(t, server)
	server.Close()
	target, err := bench.NewTarget(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bench.Read(t.Context(), target, bench.ReadConfig{Path: "/", Requests: 1, Clients: 1}); err == nil {
		t.Fatal("want an error")
	}
}

func TestUsageOfThisProcess(t *testing.T) {
	p := bench.Process{PID: os.Getpid()}
	before, err := p.Usage()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0
	for after := before; after.CPU == before.CPU; {
		for i := range 1 << 20 {
			sum += i
		}
		if after, err = p.Usage(); err != nil {
			t.Fatal(err)
		}
		if after.CPU < before.CPU {
			t.Fatalf("CPU time went back from %v to %v", before.CPU, after.CPU)
		}
	}
	if _, err := (bench.Process{PID: 1 << 30}).Usage(); err == nil {
		t.Error("want an error for a process that does not exist")
	}
	if usage, err := (bench.Process{}).Usage(); err != nil || usage != (bench.Usage{}) {
		t.Errorf("the zero Process reports %+v, %v; want nothing", usage, err)
	}
}
