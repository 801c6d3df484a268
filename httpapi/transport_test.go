package httpapi

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/larder-io/larder/httpapi/routes"
)

// TestRoundTripper checks that requests from within the process are served as the super-user's, without the network.
func TestRoundTripper(t *testing.T) {
	f := newTestServer(t, Config{}, func(routes *routes.Table) {
		routes.Handle("/x", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			u, _ := apirequest.UserFrom(req.Context())
			body, _ := io.ReadAll(req.Body)
			fmt.Fprintf(w, "%s %s", u.GetName(), body)
		}))
		routes.Handle("/debug/pprof/follow", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			io.WriteString(w, "first")
			w.(http.Flusher).Flush()
			<-req.Context().Done()
		}))
	})
	c := &http.Client{Transport: f.RoundTripper()}
	for _, scheme := range []string{"http", "https"} {
		resp, err := c.Post(scheme+"://anywhere/x", "text/plain", strings.NewReader("hello"))
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if string(body) != "system:apiserver hello" {
			t.Errorf("%s: got %q, want the echo as system:apiserver", scheme, body)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	req, _ := http.NewRequestWithContext(ctx, "GET", "http://anywhere/debug/pprof/follow", nil)
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var buf [5]byte
	if _, err := io.ReadFull(resp.Body, buf[:]); err != nil || string(buf[:]) != "first" {
		t.Errorf("got %q and error %v, want first", buf, err)
	}
	cancel()
}

// TestWatchesOfThisProcessStayOpen checks that the search for disconnected clients ends no watch of this process,
// whose connections are not sockets.
func TestWatchesOfThisProcessStayOpen(t *testing.T) {
	p := newPair(t)
	p.ours.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"a"}}`))
	c := &http.Client{Transport: p.RoundTripper()}
	resp, err := c.Get("http://anywhere" + configmaps + "?watch=1&labelSelector=a")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	p.streams.Probe()
	p.ours.must(t, post(configmaps, `{"metadata":{"name":"one","labels":{"a":"b"}}}`))
	if _, event := nextEvent(t, bufio.NewReader(resp.Body)); !strings.Contains(event, `"ADDED"`) {
		t.Errorf("got %s, want ADDED", event)
	}
}
