package httpapi

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/registry/registrytest"
)

// TestSeatsOfUpstreamsWatches opens a watch over a websocket, which upstream's handler serves. Like other watches it
// holds a seat until it has sent the initial events, and is counted until it ends.
func TestSeatsOfUpstreamsWatches(t *testing.T) {
	flow := newFlow(t) // one seat for all that are not exempt
	back := registrytest.New(t, nil)
	f := serveBackWith(t, back, func(c *Config) { c.Authenticator, c.Flow = named, flow })
	side := f.side(t, back, f.client(t).Transport)
	as := func(c call, who string) call {
		c.header = map[string]string{"Authorization": who}
		return c
	}
	side.must(t, as(post("/api/v1/namespaces", `{"metadata":{"name":"a"}}`), "root"))
	const objects = 300
	value := make([]byte, 64<<10) // more, together, than is buffered for a client
	for i := range value {
		value[i] = 'x'
	}
	for i := range objects {
		side.must(t, as(post(configmaps, configmap(fmt.Sprint("c", i), "", string(value))), "root"))
	}
	side.must(t, as(get(configmaps), "root"))
	info := &apirequest.RequestInfo{IsResourceRequest: true, Verb: "create", APIVersion: "v1", Resource: "configmaps", Namespace: "a"}
	awaitWatches := func(want int) {
		t.Helper()
		proctest.Eventually(t, fmt.Sprintf("%d watches receive a write", want), func() error {
			if n := flow.Watches(info); n != want {
				return fmt.Errorf("got %d", n)
			}
			return nil
		})
	}
	c := f.dial(t)
	if tcp, ok := c.NetConn().(*net.TCPConn); !ok || tcp.SetReadBuffer(64<<10) != nil {
		t.Fatal("the connection accepts no small read buffer")
	}
	fmt.Fprintf(c, "GET %s?watch=1 HTTP/1.1\r\nHost: h\r\nAuthorization: jane\r\nOrigin: https://h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n", configmaps)
	awaitWatches(1)
	// The watch, whose client has read nothing, has the only seat, for which no request waits.
	refused := side.call(t, as(get(configmaps+"/c0"), "joe"))
	if refused.code != http.StatusTooManyRequests {
		t.Errorf("during a watch's initial events: got status %d, want 429", refused.code)
	}
	read := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, c)
		read <- err
	}()
	proctest.Eventually(t, "the seat is free once the watch is initialized", func() error {
		if got := side.call(t, as(get(configmaps+"/c0"), "joe")); got.code != http.StatusOK {
			return fmt.Errorf("%d", got.code)
		}
		return nil
	})
	awaitWatches(1)
	c.Close()
	<-read
	awaitWatches(0)
}

// TestRequestsWaitAFourthOfTheirTime checks that a request waits for a seat for at most a fourth of its timeout, and
// never longer than a minute. The timeout of a watch is --request-timeout.
func TestRequestsWaitAFourthOfTheirTime(t *testing.T) {
	received := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct{ timeout, own, want time.Duration }{
		{time.Minute, 0, 15 * time.Second},
		{2 * time.Minute, 0, 30 * time.Second},
		{time.Minute, 8 * time.Second, 2 * time.Second},
		{time.Hour, 0, time.Minute},
		{time.Hour, time.Hour, time.Minute},
	} {
		x := new(apiCall)
		if x.Received = received; c.own > 0 {
			x.Deadline = received.Add(c.own)
		}
		if got := (&concurrency{timeout: c.timeout}).queueDeadline(x).Sub(received); got != c.want {
			t.Errorf("timeout %v, of the request %v: waits for %v, want %v", c.timeout, c.own, got, c.want)
		}
	}
}
