package http2

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/socket"
)

// describing responds with the request that a Carrier presents.
func describing(c exchange.Carrier, received time.Time) *exchange.Exchange {
	x := new(exchange.Exchange)
	x.Init(c, received, nil)
	facts := c.Inspect()
	if facts.Code != 0 {
		x.Text(facts.Code, facts.Refusal)
		return x
	}
	text := fmt.Sprintf("%s %s %s %d", c.Method(), c.Target(), c.Host(), c.BodyLength())
	for name, value := range c.Lines() {
		text += fmt.Sprintf("|%s: %s", name, value)
	}
	if facts.Impersonates || facts.OtherCredentials {
		text += fmt.Sprintf("|%+v", facts)
	}
	x.Send(http.StatusOK, "text/plain", []byte(text))
	return x
}

// TestHeadersReachTheHandlerOrAreRejected checks valid and invalid header fields.
func TestHeadersReachTheHandlerOrAreRejected(t *testing.T) {
	get := func(more ...string) []string {
		return append([]string{":method", "GET", ":scheme", "https", ":authority", "h", ":path", "/a?b"}, more...)
	}
	for name, c := range map[string]struct {
		fields []string
		code   string
		body   string
		reset  http2.ErrCode
	}{
		"a header":             {get("accept", "x", "accept", "y"), "200", "GET /a?b h 0|accept: x|accept: y", 0},
		"host alone":           {[]string{":method", "GET", ":scheme", "https", ":path", "/", "host", "g"}, "200", "GET / g 0|host: g", 0},
		"impersonation":        {get("impersonate-user", "u"), "200", "GET /a?b h 0|impersonate-user: u|{Code:0 Refusal: Impersonates:true OtherCredentials:false}", 0},
		"a proxied user":       {get("x-remote-user", "u"), "200", "GET /a?b h 0|x-remote-user: u|{Code:0 Refusal: Impersonates:false OtherCredentials:true}", 0},
		"te: trailers":         {get("te", "trailers"), "200", "GET /a?b h 0|te: trailers", 0},
		"asterisk":             {[]string{":method", "OPTIONS", ":scheme", "https", ":authority", "h", ":path", "*"}, "200", "", 0},
		"CONNECT":              {[]string{":method", "CONNECT", ":authority", "g:1"}, "200", "CONNECT g:1 g:1 0", 0},
		"HEAD":                 {[]string{":method", "HEAD", ":scheme", "https", ":authority", "h", ":path", "/"}, "200", "", 0},
		"Connection":           {get("connection", "close"), "", "", http2.ErrCodeProtocol},
		"an upgrade":           {get("upgrade", "SPDY/3.1"), "", "", http2.ErrCodeProtocol},
		"chunks":               {get("transfer-encoding", "chunked"), "", "", http2.ErrCodeProtocol},
		"te: gzip":             {get("te", "gzip"), "", "", http2.ErrCodeProtocol},
		"credentials":          {get("authorization", "a", "authorization", "b"), "400", "400 Bad Request: repeated Authorization header\n", 0},
		"a broken host":        {[]string{":method", "GET", ":scheme", "https", ":authority", "a b", ":path", "/"}, "400", "400 Bad Request: malformed Host header\n", 0},
		"two types":            {get("content-type", "a", "content-type", "b"), "400", "400 Bad Request: repeated Content-Type header\n", 0},
		"two hosts":            {get("host", "a", "host", "b"), "400", "400 Bad Request: repeated Host header\n", 0},
		"two lengths":          {get("content-length", "1", "content-length", "2"), "400", "400 Bad Request: malformed Content-Length header\n", 0},
		"a length after 0":     {get("content-length", "0", "content-length", "2"), "400", "400 Bad Request: malformed Content-Length header\n", 0},
		"a broken length":      {get("content-length", "1x"), "400", "400 Bad Request: malformed Content-Length header\n", 0},
		"expectations":         {get("expect", "x"), "417", "", 0},
		"a large header":       {get("x", strings.Repeat("y", 1<<20)), "431", "431 Request Header Fields Too Large\n", 0},
		"no method":            {[]string{":scheme", "https", ":path", "/"}, "", "", http2.ErrCodeProtocol},
		"a broken method":      {[]string{":method", "G T", ":scheme", "https", ":path", "/"}, "", "", http2.ErrCodeProtocol},
		"no scheme":            {[]string{":method", "GET", ":path", "/"}, "", "", http2.ErrCodeProtocol},
		"an unknown scheme":    {[]string{":method", "GET", ":scheme", "ftp", ":path", "/"}, "", "", http2.ErrCodeProtocol},
		"no path":              {[]string{":method", "GET", ":scheme", "https"}, "", "", http2.ErrCodeProtocol},
		"a relative path":      {[]string{":method", "GET", ":scheme", "https", ":path", "a"}, "", "", http2.ErrCodeProtocol},
		"a URL as path":        {[]string{":method", "GET", ":scheme", "https", ":path", "https://h/a"}, "", "", http2.ErrCodeProtocol},
		"two paths":            {[]string{":method", "GET", ":scheme", "https", ":path", "/", ":path", "/b"}, "", "", http2.ErrCodeProtocol},
		"a path, late":         {[]string{":method", "GET", ":scheme", "https", "a", "b", ":path", "/"}, "", "", http2.ErrCodeProtocol},
		"capitals":             {get("Accept", "x"), "", "", http2.ErrCodeProtocol},
		"a name of two lines":  {get("a\nb", "x"), "", "", http2.ErrCodeProtocol},
		"a value of two lines": {get("a", "b\r\nc: d"), "", "", http2.ErrCodeProtocol},
		"a response's field":   {get(":status", "200"), "", "", http2.ErrCodeProtocol},
		"CONNECT to a path":    {[]string{":method", "CONNECT", ":authority", "g:1", ":path", "/"}, "", "", http2.ErrCodeProtocol},
		"CONNECT with scheme":  {[]string{":method", "CONNECT", ":authority", "g:1", ":scheme", "https"}, "", "", http2.ErrCodeProtocol},
		"CONNECT to no host":   {[]string{":method", "CONNECT"}, "", "", http2.ErrCodeProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPeer(t, Config{}, describing)
				p.must(p.request(1, true, c.fields...))
				fields, body, reset := p.ended(1)
				if fields[":status"] != c.code || body != c.body || reset != c.reset {
					t.Errorf("got header %v, body %q, reset %v; want status %s, %q, %v", fields, body, reset, c.code, c.body, c.reset)
				}
				if name == "HEAD" && fields["content-length"] != fmt.Sprint(len("HEAD / h 0")) {
					t.Errorf("got header %v, want the content-length of the response to GET", fields)
				}
				block := p.encode(":method", "GET", ":scheme", "https", ":authority", "h", ":path", "/after")
				p.must(p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: block, EndStream: true, EndHeaders: true, Priority: http2.PriorityParam{Weight: 1}}))
				if _, body, _ := p.ended(3); !strings.HasPrefix(body, "GET /after") {
					t.Errorf("a later request got %q", body)
				}
			})
		})
	}
}

// TestBodiesAreReadWithinTheirLimits checks bodies of known and unknown length, trailers, and limits of size and time.
func TestBodiesAreReadWithinTheirLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t, Config{}, func(c exchange.Carrier, received time.Time) *exchange.Exchange {
			x := new(exchange.Exchange)
			x.Init(c, received, nil)
			if string(c.Target()) == "/unread" {
				x.Send(http.StatusOK, "", nil)
				return x
			}
			data, err := c.ReadBody(time.Now().Add(time.Minute))
			x.Send(http.StatusOK, "", fmt.Appendf(nil, "%d %v %v", len(data), err, socket.IsTimeout(err)))
			return x
		})
		id := uint32(1)
		post := func(path string, end bool, more ...string) uint32 {
			id += 2
			p.must(p.request(id, end, append([]string{":method", "POST", ":scheme", "https", ":authority", "h", ":path", path}, more...)...))
			return id
		}
		expect := func(id uint32, want string, wantReset http2.ErrCode) {
			t.Helper()
			if _, body, reset := p.ended(id); body != want || reset != wantReset {
				t.Errorf("got body %q, reset %v; want %q, %v", body, reset, want, wantReset)
			}
		}
		send := func(id uint32, n int, end bool) {
			for ; n > 16384; n -= 16384 {
				_ = p.framer.WriteData(id, false, make([]byte, 16384)) // the server may have closed the connection
			}
			_ = p.framer.WriteData(id, end, make([]byte, n))
		}
		send(post("/", false), 100_000, true)
		expect(id, "100000 <nil> false", 0)
		send(post("/", false, "content-length", "5"), 5, true)
		expect(id, "5 <nil> false", 0)
		send(post("/", false, "expect", "100-continue"), 5, true)
		p.await("100 Continue", func(h receivedFrame) bool { return h.id == id && h.fields[":status"] == "100" })
		send(post("/", false), 7, false)
		p.must(p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.encode("trailer", "x"), EndStream: true, EndHeaders: true}))
		expect(id, "7 <nil> false", 0)
		for _, trailer := range [][]string{{":path", "/"}, {":status", "200"}, {"Trailer", "x"}, {"trailer", "x\n"}} {
			send(post("/", false), 7, false)
			p.must(p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.encode(trailer...), EndStream: true, EndHeaders: true}))
			expect(id, "", http2.ErrCodeProtocol)
		}
		send(post("/", false, "content-length", "9"), 7, false)
		p.must(p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.encode("trailer", "x"), EndStream: true, EndHeaders: true}))
		expect(id, "", http2.ErrCodeProtocol)
		post("/", false, "content-length", "1048577")
		expect(id, "0 Request entity too large: limit is 1048576 false", 0)
		for i := range 2 * largeBodies {
			over := i % 2
			send(post("/", false), defaultWindow/2, false)
			synctest.Wait() // until the rest is granted
			send(id, 1<<20+over-defaultWindow/2, false)
			expect(id, []string{"1048576 i/o timeout true", "1048576 Request entity too large: limit is 1048576 false"}[over], 0)
		}
		send(post("/", false), 200_000, false) // without an end
		expect(id, "200000 i/o timeout true", 0)
		send(post("/", false, "content-length", "5"), 6, true)
		expect(id, "", http2.ErrCodeProtocol)
		send(post("/", false, "content-length", "5"), 4, true)
		expect(id, "", http2.ErrCodeProtocol)
		post("/unread", false)
		expect(id, "", 0)
		p.await("word that no more is wanted", func(h receivedFrame) bool {
			return h.id == id && h.kind == http2.FrameRSTStream && h.code == http2.ErrCodeNo
		})
		send(id, 10, false) // as if sent before the client got the response
		send(post("/", false), defaultWindow+1, false)
	})
}

// TestInvalidFramesOfBodiesResetTheStream checks a client that sends more of a body than its window allows, or frames
// after its end.
func TestInvalidFramesOfBodiesResetTheStream(t *testing.T) {
	for name, c := range map[string]struct {
		send func(p *peer)
		code http2.ErrCode
		id   uint32
	}{
		"more than the window": {func(p *peer) {
			for range defaultWindow/16384 + 1 {
				p.must(p.framer.WriteData(1, false, make([]byte, 16384)))
			}
		}, http2.ErrCodeFlowControl, 1},
		"data after the end": {func(p *peer) {
			p.must(p.framer.WriteData(1, true, []byte("a")))
			p.must(p.framer.WriteData(1, false, []byte("b")))
		}, http2.ErrCodeStreamClosed, 1},
		"a trailer after the end": {func(p *peer) {
			p.must(p.framer.WriteData(1, true, []byte("a")))
			p.must(p.request(1, true, "trailer", "x"))
		}, http2.ErrCodeStreamClosed, 1},
		"a trailer that is not the end": {func(p *peer) {
			p.must(p.request(1, false, "trailer", "x"))
		}, http2.ErrCodeProtocol, 1},
		"data without a body": {func(p *peer) {
			p.must(p.get(3, "/"))
			p.must(p.framer.WriteData(3, false, []byte("a")))
		}, http2.ErrCodeStreamClosed, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPeer(t, Config{}, func(c exchange.Carrier, received time.Time) *exchange.Exchange {
					x := new(exchange.Exchange)
					x.Init(c, received, t.Context())
					<-x.Base().Done() // without reading
					return x
				})
				p.must(p.request(1, false, ":method", "POST", ":scheme", "https", ":authority", "h", ":path", "/"))
				c.send(p)
				if _, _, reset := p.ended(c.id); reset != c.code {
					t.Errorf("got reset %v, want %v", reset, c.code)
				}
			})
		})
	}
}

// TestExchangesEndWhenTheClientLeaves checks that the context of a request, and a read of its body, end when the client
// resets the stream or closes the connection, and when the server closes it.
func TestExchangesEndWhenTheClientLeaves(t *testing.T) {
	for name, leave := range map[string]func(p *peer){
		"reset":         func(p *peer) { p.must(p.framer.WriteRSTStream(1, http2.ErrCodeCancel)) },
		"close":         func(p *peer) { p.conn.Close() },
		"invalid frame": func(p *peer) { p.must(p.framer.WriteRawFrame(http2.FramePing, 0, 1, nil)) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, ended := make(chan struct{}, 2), make(chan error, 2)
				p := newPeer(t, Config{}, func(c exchange.Carrier, received time.Time) *exchange.Exchange {
					x := new(exchange.Exchange)
					x.Init(c, received, t.Context())
					x.PrepareBy = received.Add(time.Hour)
					ctx, cancel := x.PrepareContext()
					defer cancel()
					began <- struct{}{}
					if string(c.Method()) == "POST" {
						_, err := c.ReadBody(time.Now().Add(time.Hour))
						ended <- err
						return x
					}
					<-ctx.Done()
					ended <- x.Base().Err()
					return x
				})
				p.must(p.get(1, "/"))
				<-began
				leave(p)
				if err := <-ended; !errors.Is(err, context.Canceled) {
					t.Errorf("the context ended with %v, want Canceled", err)
				}
				if name != "reset" {
					<-p.served
					return
				}
				p.must(p.request(3, false, ":method", "POST", ":scheme", "https", ":authority", "h", ":path", "/"))
				<-began
				p.must(p.framer.WriteRSTStream(3, http2.ErrCodeCancel))
				if err := <-ended; err == nil || socket.IsTimeout(err) {
					t.Errorf("reading the body ended with %v, want an error other than a timeout", err)
				}
			})
		})
	}
}

// TestPanicsEndOnlyTheirStream checks panics of a handler and of a body, and responses that are cut off. The body must be
// closed.
func TestPanicsEndOnlyTheirStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var closed atomic.Int64
		p := newPeer(t, Config{}, func(c exchange.Carrier, received time.Time) *exchange.Exchange {
			switch x := echo(c, received); string(c.Target()) {
			case "/panic":
				panic("expected")
			case "/abort":
				panic(http.ErrAbortHandler)
			case "/cut":
				x.Abort = true
				return x
			case "/short":
				x.SendFrom(http.StatusOK, "", 20000, pattern(10000))
				return x
			case "/body":
				x.SendFrom(http.StatusOK, "", 20000, countedBody{panicking{pattern(0)}, &closed})
				return x
			default:
				return x
			}
		})
		for i, path := range []string{"/panic", "/abort", "/cut", "/short", "/body"} {
			p.must(p.get(uint32(2*i+1), path))
			if _, _, reset := p.ended(uint32(2*i + 1)); reset != http2.ErrCodeInternal {
				t.Errorf("%s: got reset %v, want INTERNAL_ERROR", path, reset)
			}
		}
		p.must(p.get(101, "/"))
		if fields, _, _ := p.ended(101); fields[":status"] != "200" {
			t.Errorf("a later request got header %v, want status 200", fields)
		}
		if synctest.Wait(); closed.Load() != 1 {
			t.Error("the body of the panic was not closed")
		}
	})
}

// panicking is a body that panics when it is written.
type panicking struct{ pattern }

func (panicking) WriteTo(io.Writer) (int64, error) { panic("expected") }

// TestMalformedHeaderBlocksEndTheConnection checks padding and HPACK errors. Later header blocks depend on the table
// entries of a malformed one, so the connection must end.
func TestMalformedHeaderBlocksEndTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, id := range []uint32{1, 3} { // an ended stream, and a new one
			for flag, want := range map[http2.Flags]http2.ErrCode{http2.FlagHeadersPadded: http2.ErrCodeProtocol, 0: http2.ErrCodeCompression} {
				p := newPeer(t, Config{}, echo)
				p.must(p.get(1, "/"))
				p.ended(1)
				// The frame announces nine bytes of padding, or a value of two bytes, and ends before.
				p.must(p.framer.WriteRawFrame(http2.FrameHeaders, flag|http2.FlagHeadersEndHeaders, id, []byte{9, 0x82}))
				p.awaitGoAway(want)
				<-p.served
			}
		}
	})
}
