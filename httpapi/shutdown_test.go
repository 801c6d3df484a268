package httpapi

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/larder-io/larder/httpapi/http1"
	"github.com/larder-io/larder/httpapi/routes"
	"github.com/larder-io/larder/internal/proctest"
)

// TestShutdownDoesNotWaitForStuckReaders checks that clients that do not read their responses do not keep the server
// from ending, however long its grace period is.
func TestShutdownDoesNotWaitForStuckReaders(t *testing.T) {
	t.Parallel()
	wrote := make(chan struct{}, 3)
	pour := func(w http.ResponseWriter, _ *http.Request) {
		wrote <- struct{}{}
		chunk := make([]byte, 1<<20)
		for range 256 {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	}
	f := newTestServer(t, Config{Timeouts: Timeouts{ShutdownGrace: time.Hour, RequestTimeout: time.Hour}, Connections: Connections{Limits: http1.Limits{UserTimeout: time.Hour}}}, func(routes *routes.Table) {
		routes.Handle("/x", http.HandlerFunc(echo))
		routes.Handle("/pour", http.HandlerFunc(pour))
		routes.Handle("/debug/pprof/pour", http.HandlerFunc(pour)) // a stream
	})
	for _, path := range []string{"/pour", "/debug/pprof/pour"} {
		c := f.dial(t)
		if err := c.SetDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: h\r\n\r\n", path); err != nil {
			t.Fatal(err)
		}
		<-wrote
	}
	ended := make(chan error, 1)
	go func() { ended <- f.stop() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(proctest.Patience / 2):
		t.Fatal("the server waits for clients that do not read")
	}
}

// TestShutdownEndsStreams checks that the context of a streaming handler ends with the server, and that no goroutine
// remains.
func TestShutdownEndsStreams(t *testing.T) {
	began := make(chan struct{})
	f := newTestServer(t, Config{}, func(routes *routes.Table) {
		routes.Handle("/debug/pprof/follow", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			w.(http.Flusher).Flush()
			close(began)
			<-req.Context().Done()
		}))
	})
	c := f.dial(t)
	io.WriteString(c, "GET /debug/pprof/follow HTTP/1.1\r\nHost: h\r\n\r\n")
	<-began
	if err := f.stop(); err != nil {
		t.Error(err)
	}
	if n, _ := openStreams(f.streams); n != 0 {
		t.Errorf("got %d open streams, want 0", n)
	}
}

// TestShutdownSendsLastBookmarks checks that a client that allows bookmarks can resume at the current revision after the server
// has ended. Its watched objects may not have changed for long.
func TestShutdownSendsLastBookmarks(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"all at once":         func(*Config) {},
		"one after the other": func(c *Config) { c.WatchGrace = time.Second },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPairWith(t, change)
			p.ours.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"a"}}`))
			p.ours.must(t, post(configmaps, configmap("one", "", "")))
			_, follows := p.openWatch(t, configmaps+"?watch=1&allowWatchBookmarks=true", "application/json")
			_, plain := p.openWatch(t, configmaps+"?watch=1", "application/json")
			expect(t, follows, "ADDED one")
			expect(t, plain, "ADDED one")
			if first, raw := nextEvent(t, follows); first.Type != "BOOKMARK" {
				t.Fatalf("got %s, want the bookmark that ends the initial events", raw)
			}
			p.ours.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"b"}}`))
			var present event
			if err := json.Unmarshal(p.ours.must(t, get(configmaps)).body, &present.Object); err != nil {
				t.Fatal(err)
			}
			go p.stop()
			last, raw := nextEvent(t, follows)
			if last.Type != "BOOKMARK" || last.Object.Metadata.ResourceVersion != present.Object.Metadata.ResourceVersion {
				t.Errorf("got %s, want a bookmark of revision %s", raw, present.Object.Metadata.ResourceVersion)
			}
			for _, in := range []io.Reader{follows, plain} {
				if rest, err := io.ReadAll(in); err != nil || len(rest) > 0 {
					t.Errorf("got %q and error %v, want the end of the watch", rest, err)
				}
			}
		})
	}
}

// TestConnectionsWaitUntilAccepted checks that clients that connect while the server starts are served once it
// accepts, and that a server that stops before that ends.
func TestConnectionsWaitUntilAccepted(t *testing.T) {
	accept := make(chan struct{})
	f := newTestServer(t, Config{Access: Access{Authenticator: named}, Connections: Connections{Accept: accept}}, func(*routes.Table) {})
	status := make(chan int, 1)
	go func() { status <- f.get(t, "/nowhere", "u").code }()
	for range 20 { // requests in memory are served meanwhile
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://server/nowhere", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := f.RoundTripper().RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
	select {
	case code := <-status:
		t.Fatalf("got status %d before the server accepts", code)
	default:
	}
	close(accept)
	if code := <-status; code != http.StatusNotFound {
		t.Errorf("got status %d, want 404", code)
	}

	never := newTestServer(t, Config{Access: Access{Authenticator: named}, Connections: Connections{Accept: make(chan struct{})}}, func(*routes.Table) {})
	if err := never.stop(); err != nil {
		t.Error(err)
	}
}

// TestShutdownDoesNotWaitForProbes checks that a server that rejects new requests while it shuts down waits for earlier
// requests, but not for health probes that arrive meanwhile.
func TestShutdownDoesNotWaitForProbes(t *testing.T) {
	t.Parallel()
	entered, finish := make(chan string, 2), map[string]chan struct{}{"/slow": make(chan struct{}), "/livez": make(chan struct{})}
	f := newTestServer(t, Config{Timeouts: Timeouts{ShutdownGrace: time.Hour, RequestTimeout: time.Hour, SendRetryAfter: true}}, func(routes *routes.Table) {
		for path, done := range finish {
			routes.Handle(path, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				entered <- path
				<-done
			}))
		}
		routes.Handle("/x", http.HandlerFunc(echo))
	})
	get := func(path string) (status int, err error) {
		resp, err := f.client(t).Get("https://" + f.addr + path)
		if err != nil {
			return 0, err
		}
		resp.Body.Close()
		return resp.StatusCode, nil
	}
	var requests sync.WaitGroup
	begin := func(path string) {
		requests.Go(func() {
			if status, err := get(path); err != nil || status != http.StatusOK {
				t.Errorf("%s: got status %d and error %v, want 200", path, status, err)
			}
		})
		<-entered
	}
	begin("/slow")
	ended := make(chan error, 1)
	go func() { ended <- f.stop() }()
	proctest.Eventually(t, "new requests are rejected", func() error {
		if status, err := get("/x"); err != nil || status != http.StatusTooManyRequests {
			return fmt.Errorf("got status %d and error %w", status, err)
		}
		return nil
	})
	begin("/livez")
	if _, err := get("/x"); err != nil {
		t.Errorf("the server does not wait for an earlier request: %v", err)
	}
	close(finish["/slow"])
	proctest.Eventually(t, "the server stops listening", func() error {
		if status, err := get("/x"); err == nil {
			return fmt.Errorf("got status %d", status)
		}
		return nil
	})
	close(finish["/livez"])
	requests.Wait()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
