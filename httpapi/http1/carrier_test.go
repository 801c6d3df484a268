package http1

import (
	"bytes"
	"fmt"
	"net/http"
	"regexp"
	"testing"
	"time"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/internal/proctest"
)

// TestStartStreamReturnsTheHeader checks that StartStream returns the header and the framing of the body, which the
// handler writes to the connection. The session writes no others.
func TestStartStreamReturnsTheHeader(t *testing.T) {
	for proto, want := range map[string]string{
		"HTTP/1.1": "HTTP/1.1 200 OK\r\nAudit-Id: i\r\nContent-Type: t\r\nDate: D\r\nWarning: w\r\nTransfer-Encoding: chunked\r\n\r\nbody",
		"HTTP/1.0": "HTTP/1.1 200 OK\r\nAudit-Id: i\r\nContent-Type: t\r\nDate: D\r\nWarning: w\r\nConnection: close\r\n\r\nbody",
	} {
		s := New(Config{Limits: Limits{MaxHeaderBytes: 1 << 20}, Handler: func(c exchange.Carrier, received time.Time) *exchange.Exchange {
			x := new(exchange.Exchange)
			x.Init(c, received, nil)
			to := x.StartStream(http.StatusOK, []exchange.Field{{Name: "Audit-Id", Value: "i"}, {Name: "Content-Type", Value: "t"}, {Name: "Warning", Value: "w"}})
			if to.Chunked != (proto == "HTTP/1.1") || (to.Next != nil) != to.Chunked || to.End != nil {
				t.Errorf("%s: StartStream returned %+v, want chunks and a next request with HTTP/1.1 only", proto, to)
			}
			for _, p := range [][]byte{to.Head, []byte("body")} {
				if _, err := to.Conn.Write(p); err != nil {
					t.Error(err)
				}
			}
			return x
		}})
		c := &scriptConn{in: bytes.NewReader([]byte("GET / " + proto + "\r\nHost: h\r\n\r\nGET /behind HTTP/1.1\r\n\r\n"))}
		s.Session(c).Serve()
		date := regexp.MustCompile(`Date: [^\r]*GMT`)
		if got := date.ReplaceAllString(c.out.String(), "Date: D"); got != want {
			t.Errorf("%s: got %q, want %q", proto, got, want)
		}
	}
}

// TestFirstUserAgentCounts checks that the first of several User-Agent fields counts, as in net/http.
func TestFirstUserAgentCounts(t *testing.T) {
	for lines, want := range map[string]string{
		"": "", "User-Agent: a\r\n": "a", "User-Agent:  a b \r\nuser-agent: c\r\n": "a b", "User-Agent:\r\nUser-Agent: b\r\n": "", "user-agent: a\r\nUser-Agent:\r\n": "a",
	} {
		s := New(Config{Limits: Limits{MaxHeaderBytes: 1 << 20}, Handler: func(c exchange.Carrier, received time.Time) *exchange.Exchange {
			if facts := c.Inspect(); facts != (exchange.Facts{}) {
				t.Errorf("%q: got facts %+v, want none", lines, facts)
			}
			if got := string(c.Peek("User-Agent")); got != want {
				t.Errorf("%q: got User-Agent %q, want %q", lines, got, want)
			}
			return exchange.NewRefusal(c, received, http.StatusOK, false)
		}})
		s.Session(&scriptConn{in: bytes.NewReader([]byte("GET / HTTP/1.1\r\nHost: h\r\n" + lines + "\r\n"))}).Serve()
	}
}

// TestSessionEndsWhenAHandlerStreams checks that the session ends when a handler takes over its connection.
func TestSessionEndsWhenAHandlerStreams(t *testing.T) {
	s := newTestServer(t, Config{}, func(c exchange.Carrier, received time.Time) *exchange.Exchange {
		x := new(exchange.Exchange)
		x.Init(c, received, nil)
		to := x.StartStream(http.StatusOK, nil)
		if _, err := to.Conn.Write(to.Head); err != nil {
			t.Error(err)
		}
		return x
	})
	c := s.dial(t)
	if _, err := c.Write([]byte("GET / HTTP/1.1\r\nHost: h\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	proctest.Eventually(t, "the session ends", func() error {
		if open, served := len(s.Network.list(true)), len(s.Network.list(false)); open != 1 || served != 0 {
			return fmt.Errorf("%d connections are open, %d are served", open, served)
		}
		return nil
	})
}
