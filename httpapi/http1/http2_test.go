package http1

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/internal/proctest"
)

// client returns a client that speaks HTTP/2 if it is offered.
func (s *testServer) client(t *testing.T) *http.Client {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.pool}, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: proctest.Patience}
}

// TestHTTP2RequestsAreServedConcurrently sends many requests on one connection.
func TestHTTP2RequestsAreServedConcurrently(t *testing.T) {
	large := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	s := newTestServer(t, Config{HTTP2: true}, func(c exchange.Carrier, received time.Time) *exchange.Exchange {
		x := new(exchange.Exchange)
		x.Init(c, received, nil)
		x.Set("Audit-Id", string(c.Peek("Audit-Id")))
		body, err := c.ReadBody(time.Now().Add(time.Minute))
		if err != nil {
			x.Text(http.StatusInternalServerError, err.Error())
			return x
		}
		switch string(c.Target()) {
		case "/large":
			x.Send(http.StatusOK, "text/plain", large)
		case "/reader":
			x.SendReader(http.StatusOK, io.NopCloser(bytes.NewReader(large)))
		default:
			x.Send(http.StatusCreated, "text/plain", fmt.Appendf(nil, "%s %s %s %d %s", c.Method(), c.Host(), c.Target(), c.BodyLength(), body))
		}
		return x
	})
	client := s.client(t)
	if resp, err := client.Get("https://" + s.addr); err != nil { // otherwise each of the concurrent requests would open a connection
		t.Fatal(err)
	} else {
		resp.Body.Close()
	}
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			upload := strings.Repeat("x", 20000*i)
			req, _ := http.NewRequest("POST", fmt.Sprintf("https://%s/a?n=%d", s.addr, i), strings.NewReader(upload))
			req.Header.Set("Audit-Id", fmt.Sprint(i))
			resp, err := client.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if want := fmt.Sprintf("POST %s /a?n=%d %d %s", s.addr, i, len(upload), upload); err != nil || string(body) != want ||
				resp.Proto != "HTTP/2.0" || resp.StatusCode != 201 || resp.Header.Get("Audit-Id") != fmt.Sprint(i) || resp.Header.Get("Date") == "" {
				t.Errorf("got %s %s %v: %.100q, error %v; want %.100q", resp.Proto, resp.Status, resp.Header, body, err, want)
			}
		})
		all.Go(func() {
			resp, err := client.Get("https://" + s.addr + []string{"/large", "/reader"}[i%2])
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if body, err := io.ReadAll(resp.Body); err != nil || !bytes.Equal(body, large) {
				t.Errorf("got %d bytes and error %v, want %d", len(body), err, len(large))
			}
		})
	}
	all.Wait()
	if open := len(s.Network.list(true)); open != 1 {
		t.Errorf("%d connections, want 1", open)
	}
}
