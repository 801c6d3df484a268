package http1

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/larder-io/larder/httpapi/exchange"
)

// TestContextsEndWhenTheClientLeaves checks that all contexts of a request end soon after its client has closed the
// connection, also if the client has already sent a part of another request. Contexts of other requests do not end.
func TestContextsEndWhenTheClientLeaves(t *testing.T) {
	contexts, respond := make(chan context.Context, 2), make(chan struct{})
	s := newTestServer(t, Config{}, func(c exchange.Carrier, received time.Time) *exchange.Exchange {
		x := new(exchange.Exchange)
		x.Init(c, received, context.Background())
		x.Deadline = received.Add(time.Minute)
		bounded, release := x.PrepareContext()
		defer release()
		contexts <- x.Base()
		contexts <- bounded
		select {
		case <-bounded.Done():
			<-x.Base().Done()
		case <-respond:
		}
		x.Text(http.StatusOK, "ok")
		return x
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); s.Network.EndDisconnected(ctx) }()
	defer func() { cancel(); <-ended }()
	const request = "POST / HTTP/1.1\r\nHost: h\r\n\r\n"
	send := func(text string) (net.Conn, [2]context.Context) {
		c := s.dial(t)
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
		return c, [2]context.Context{<-contexts, <-contexts}
	}
	waits, of := send(request)
	for _, text := range []string{request, request + "GET "} {
		c, of := send(text)
		c.Close()
		for _, ctx := range of {
			<-ctx.Done()
			if err := ctx.Err(); !errors.Is(err, context.Canceled) {
				t.Errorf("after %q the context ended with %v, want Canceled", text, err)
			}
		}
	}
	for _, ctx := range of {
		if err := ctx.Err(); err != nil {
			t.Errorf("the context of a connected client ended: %v", err)
		}
	}
	close(respond)
	if _, err := io.ReadAtLeast(waits, make([]byte, 20), 20); err != nil {
		t.Error(err)
	}
	for _, ctx := range of {
		<-ctx.Done()
	}
}
