package httpapi

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/larder-io/larder/httpapi/routes"
)

// scriptConn is a connection on which everything that a client sends is known
// beforehand.
type scriptConn struct {
	in  *bytes.Reader
	out bytes.Buffer
}

func (c *scriptConn) Read(p []byte) (int, error)       { return c.in.Read(p) }
func (c *scriptConn) Write(p []byte) (int, error)      { return c.out.Write(p) }
func (c *scriptConn) Close() error                     { return nil }
func (c *scriptConn) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (c *scriptConn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (c *scriptConn) SetDeadline(time.Time) error      { return nil }
func (c *scriptConn) SetReadDeadline(time.Time) error  { return nil }
func (c *scriptConn) SetWriteDeadline(time.Time) error { return nil }

// handled is a request as a handler receives it.
type handled struct{ method, path, query, host, header, body string }

func requestOf(req *http.Request, body []byte) handled {
	header := req.Header.Clone()
	header.Del("Trailer") // net/http leaves it there if there can be none
	var text strings.Builder
	_ = header.Write(&text) // of memory
	path := req.URL.Path
	if path == "" {
		path = "/" // of a target that names a host alone
	}
	return handled{req.Method, path, req.URL.Query().Encode(), req.Host, text.String(), string(body)}
}

func record(into *[]handled) http.Handler {
	return http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return // upstream's handlers return an error
		}
		*into = append(*into, requestOf(req, body))
	})
}

// reference reads requests with net/http's parser. Like fasthttp, and as RFC 9112
// asks, it passes over empty lines before a request.
func reference(script []byte) (list []handled) {
	in := bufio.NewReader(bytes.NewReader(script))
	for {
		for {
			next, _ := in.Peek(2)
			if len(next) > 0 && next[0] == '\n' {
				_, _ = in.Discard(1)
			} else if string(next) == "\r\n" {
				_, _ = in.Discard(2)
			} else {
				break
			}
		}
		req, err := http.ReadRequest(in)
		if err != nil {
			return list
		}
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return list
		}
		list = append(list, requestOf(req, body))
	}
}

// FuzzRequests sends a client's bytes to the server and to net/http's parser. net/http must read every request that
// the server reads, in the same way and at the same place. The server may refuse more requests.
func FuzzRequests(f *testing.F) {
	for _, script := range wireScripts {
		f.Add([]byte(script))
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) <= 1<<14 {
			checkScript(t, script)
		}
	})
}

var wireScripts = []string{
	"GET /x HTTP/1.1\r\nHost: h\r\n\r\n", "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabcGET /y HTTP/1.1\r\nHost: h\r\n\r\n",
	"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\nT: v\r\n\r\nGET /y HTTP/1.1\r\nHost: h\r\n\r\n",
	"GET /x HTTP/1.0\r\n\r\n", "GET /x HTTP/1.1\nHost: h\n\n", "\r\n\r\nGET /x HTTP/1.1\r\nHost: h\r\n\r\n",
	"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 3,3\r\n\r\nabc",
	"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 0x3\r\n\r\nabc", "GET /x HTTP/1.1\r\nHost: h\r\nA: b\r\n c\r\n\r\n", "GET /x HTTP/1.1\r\nHost: h\r\nA\x00: b\r\n\r\n",
	"POST /x HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\na", "HEAD /x HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello",
	"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n", "POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000000\r\n", "GET http://h/x HTTP/1.1\r\nHost: g\r\n\r\n",
}

// TestMangledRequestsAreReadOnce runs the checks of FuzzRequests without a fuzzer.
func TestMangledRequestsAreReadOnce(t *testing.T) {
	piece := rapid.SampledFrom([]string{
		"\r\n", "\n", "\r", " ", "\t", ":", ",", ";", "\x00", "0", "1", "3", "-", "+", "0x", "GET /y HTTP/1.1\r\nHost: h\r\n\r\n", "Content-Length: 3\r\n",
		"Content-Length: 0\r\n", "Transfer-Encoding: chunked\r\n", "transfer-encoding: identity\r\n", "Host: g\r\n", "Connection: close\r\n", "0\r\n\r\n", "3\r\nabc\r\n", "abc", "Trailer: T\r\n", "HTTP/1.0", "%0d%0a", "\x80",
		"Cookie: a=b; c\r\n", "cookie: d\r\n", "a-b_c: d\r\n", "A-B_C: \t e \t\r\n", "Connection: a\r\n", "User-Agent: u\r\n", "Accept:\r\n", "?a&b;c&%zz",
	})
	rapid.Check(t, func(t *rapid.T) {
		script := []byte(rapid.SampledFrom(wireScripts).Draw(t, "script"))
		for range rapid.IntRange(1, 4).Draw(t, "changes") {
			at := rapid.IntRange(0, len(script)).Draw(t, "at")
			to := at
			if rapid.Bool().Draw(t, "cut") {
				to = min(len(script), at+rapid.IntRange(1, 12).Draw(t, "length"))
			}
			script = slices.Concat(script[:at], []byte(piece.Draw(t, "piece")), script[to:])
		}
		checkScript(t, script)
	})
}

// checkScript compares the requests that handlers receive with the reference.
func checkScript(t interface {
	Fatalf(string, ...any)
}, script []byte) {
	var ours []handled
	s := newServer(Config{Timeouts: Timeouts{RequestTimeout: time.Minute}})
	defer s.cancel()
	routes := routes.New()
	routes.HandlePrefix("/", record(&ours))
	s.table.Store(routes)
	s.http1.Session(&scriptConn{in: bytes.NewReader(script)}).Serve()
	s.handlers.Wait()
	theirs := reference(script)
	for i, h := range ours {
		if i >= len(theirs) || h != theirs[i] {
			t.Fatalf("request %d of %q\n got %q\nwant %q", i, script, ours, theirs)
		}
	}
}
