package http2

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/larder-io/larder/httpapi/exchange"
)

// taking responds with responses that take writes once the exchange is over.
func taking(take func(exchange.Hijacked)) handler {
	return func(c exchange.Carrier, received time.Time) *exchange.Exchange {
		x := new(exchange.Exchange)
		x.Init(c, received, nil)
		x.Hijack = take
		return x
	}
}

// said returns the frames of a stream, one word for each: header blocks with their fields except Date, bodies in
// quotes, and a dot for the end.
func (p *peer) said(id uint32) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var words []string
	for _, h := range p.heard {
		word := ""
		switch {
		case h.id != id:
			continue
		case h.kind == http2.FrameHeaders:
			var fields []string
			for name, value := range h.fields {
				if name != "date" {
					fields = append(fields, name+"="+value)
				}
			}
			slices.Sort(fields)
			word = strings.Join(fields, ",")
		case h.kind == http2.FrameData:
			word = fmt.Sprintf("%q", h.data)
		case h.kind == http2.FrameRSTStream:
			word = h.code.String()
		default:
			continue
		}
		if h.end {
			word += "."
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

// TestTakenStreams checks that a handler that takes a response over can send informational headers before the final
// one. A trailer after the body ends the stream.
func TestTakenStreams(t *testing.T) {
	hints := http.Header{"Link": {"</a>", "</b>"}}
	plain := http.Header{"Content-Type": {"text/plain"}, "Trailer": {"X-Sum"}, "Connection": {"keep-alive"}, "Transfer-Encoding": {"chunked"}}
	for name, c := range map[string]struct {
		take func(exchange.Hijacked) error
		said string
	}{
		"a body and nothing else": {func(to exchange.Hijacked) error {
			if err := to.Begin(200, nil); err != nil {
				return err
			}
			if _, err := io.WriteString(to.Conn, "body"); err != nil {
				return err
			}
			return to.End(nil)
		}, `:status=200 "body" "".`},
		"hints": {func(to exchange.Hijacked) error {
			for _, code := range []int{103, 102, 103} {
				if err := to.Begin(code, hints); err != nil {
					return err
				}
			}
			if err := to.Begin(204, nil); err != nil {
				return err
			}
			return to.End(nil)
		}, `:status=103,link=</b> :status=102,link=</b> :status=103,link=</b> :status=204 "".`},
		"a trailer behind a body": {func(to exchange.Hijacked) error {
			if err := to.Begin(200, plain); err != nil {
				return err
			}
			for _, piece := range []string{"some", "thing"} {
				if _, err := io.WriteString(to.Conn, piece); err != nil {
					return err
				}
			}
			return to.End(http.Header{"X-Sum": {"1"}, "Grpc-Status": {"0"}})
		}, `:status=200,content-type=text/plain,trailer=X-Sum "some" "thing" grpc-status=0,x-sum=1.`},
		"a trailer and no body": {func(to exchange.Hijacked) error {
			if err := to.Begin(200, nil); err != nil {
				return err
			}
			return to.End(http.Header{"Grpc-Status": {"5"}})
		}, `:status=200 grpc-status=5.`},
		"a trailer that HTTP has no room for": {func(to exchange.Hijacked) error {
			if err := to.Begin(200, nil); err != nil {
				return err
			}
			return to.End(http.Header{"Bad Name": {"x"}, "Value": {"a\r\nb"}, "Good": {"y"}})
		}, `:status=200 good=y.`},
		"a trailer longer than a frame": {func(to exchange.Hijacked) error {
			if err := to.Begin(200, nil); err != nil {
				return err
			}
			return to.End(http.Header{"Long": {strings.Repeat("x", 10_000)}})
		}, `:status=200 long=` + strings.Repeat("x", 10_000) + `.`},
		"no end": {func(to exchange.Hijacked) error { return to.Begin(200, nil) }, `:status=200 CANCEL`},
		"more after the end": {func(to exchange.Hijacked) error {
			if err := to.Begin(200, nil); err != nil {
				return err
			}
			if err := to.End(http.Header{"X": {"1"}}); err != nil {
				return err
			}
			if _, err := io.WriteString(to.Conn, "more"); err == nil {
				return fmt.Errorf("a body is written behind the trailer")
			}
			if to.Begin(200, nil) == nil || to.End(nil) == nil {
				return fmt.Errorf("a second answer is written behind the first")
			}
			return nil
		}, `:status=200 x=1.`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPeer(t, Config{}, taking(func(to exchange.Hijacked) {
					if err := c.take(to); err != nil {
						t.Error(err)
					}
					to.Conn.Close()
				}))
				p.must(p.get(1, "/"))
				synctest.Wait()
				if said := p.said(1); said != c.said {
					t.Errorf("%s\nwant %s", said, c.said)
				}
				p.must(p.get(3, "/")) // the connection goes on
				synctest.Wait()
				if said := p.said(3); said != c.said {
					t.Errorf("again: %s", said)
				}
			})
		})
	}
}

// TestTakenStreamsWhoseClientsLeave checks that the handler that has taken the response over learns that the client
// has left, and can write neither header nor trailer afterwards.
func TestTakenStreamsWhoseClientsLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		taken := make(chan exchange.Hijacked)
		p := newPeer(t, Config{}, taking(func(to exchange.Hijacked) { taken <- to }))
		for i, when := range []string{"before hints", "before the head", "before the trailer"} {
			id := uint32(2*i + 1)
			p.must(p.get(id, "/"))
			to, left := <-taken, make(chan struct{})
			to.Left(func() { close(left) })
			for _, code := range []int{103, 200}[:i] {
				if err := to.Begin(code, nil); err != nil {
					t.Fatal(err)
				}
			}
			p.must(p.framer.WriteRSTStream(id, http2.ErrCodeCancel))
			<-left
			if to.Begin(103, nil) == nil || to.Begin(200, nil) == nil || to.End(http.Header{"X": {"1"}}) == nil || to.End(nil) == nil {
				t.Errorf("%s: what nobody wants is written", when)
			}
			to.Conn.Close()
		}
		synctest.Wait()
		if said := p.said(1) + "|" + p.said(3) + "|" + p.said(5); said != "|:status=103|:status=103 :status=200" {
			t.Error(said)
		}
	})
}

// TestTakenBodies checks that a client that waits for 100 Continue receives it once, when the body is read.
func TestTakenBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		read := make(chan string)
		p := newPeer(t, Config{}, taking(func(to exchange.Hijacked) {
			for range 2 {
				if err := to.Body.SendContinue(to.Conn); err != nil {
					t.Error(err)
				}
			}
			body, err := io.ReadAll(to.Body)
			if err != nil {
				t.Error(err)
			}
			read <- string(body)
			if err := to.Begin(200, nil); err != nil {
				t.Error(err)
			}
			if err := to.End(http.Header{"X-Read": {fmt.Sprint(len(body))}}); err != nil {
				t.Error(err)
			}
			to.Conn.Close()
		}))
		p.must(p.ask(1, false, ":method", "POST", ":scheme", "https", ":authority", "h", ":path", "/", "expect", "100-continue"))
		synctest.Wait()
		if said := p.said(1); said != ":status=100" {
			t.Errorf("before the body: %q", said)
		}
		p.must(p.framer.WriteData(1, true, []byte("the body")))
		if body := <-read; body != "the body" {
			t.Errorf("read %q", body)
		}
		synctest.Wait()
		if said := p.said(1); said != ":status=100 :status=200 x-read=8." {
			t.Error(said)
		}
	})
}

// TestBodiesEndTheirStreams checks that the last frame of a body of known size ends the stream, without an additional
// frame.
func TestBodiesEndTheirStreams(t *testing.T) {
	for size, said := range map[int]string{
		3:                    `:status=200,content-length=3,content-type=text/plain "abc".`,
		2:                    `:status=200,content-length=2,content-type=text/plain "abc" INTERNAL_ERROR`,
		4:                    `:status=200,content-length=4,content-type=text/plain "abc" INTERNAL_ERROR`,
		exchange.UnknownSize: `:status=200,content-type=text/plain "abc" "".`,
	} {
		synctest.Test(t, func(t *testing.T) {
			p := newPeer(t, Config{}, func(c exchange.Carrier, received time.Time) *exchange.Exchange {
				x := new(exchange.Exchange)
				x.Init(c, received, nil)
				x.SendFrom(http.StatusOK, "text/plain", size, letters("abc"))
				return x
			})
			p.must(p.get(1, "/"))
			synctest.Wait()
			if got := p.said(1); got != said {
				t.Errorf("%d: %s\nwant %s", size, got, said)
			}
		})
	}
}

// TestBodilessStatuses checks that bytes behind a status without a body are not sent.
func TestBodilessStatuses(t *testing.T) {
	for _, code := range []int{http.StatusNoContent, http.StatusNotModified} {
		synctest.Test(t, func(t *testing.T) {
			p := newPeer(t, Config{}, func(c exchange.Carrier, received time.Time) *exchange.Exchange {
				x := answering(c, received)
				x.Code = code
				return x
			})
			p.must(p.get(1, "/"))
			synctest.Wait()
			if got, want := p.said(1), fmt.Sprintf(":status=%d,content-type=text/plain.", code); got != want {
				t.Errorf("%s, want %s", got, want)
			}
		})
	}
}

// letters is a body that writes itself.
type letters string

// WriteTo implements io.WriterTo.
func (l letters) WriteTo(w io.Writer) (int64, error) {
	n, err := io.WriteString(w, string(l))
	return int64(n), err
}

// Close implements io.Closer.
func (letters) Close() error { return nil }
