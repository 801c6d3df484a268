package http2

import (
	"bytes"
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

// hijacking responds with responses that take writes.
func hijacking(take func(exchange.Hijacked)) handler {
	return func(c exchange.Carrier, received time.Time) *exchange.Exchange {
		x := new(exchange.Exchange)
		x.Init(c, received, nil)
		x.Hijack = take
		return x
	}
}

// describe returns the received frames of a stream, one word for each: header blocks with their fields except Date, data
// in quotes, and a dot for the end of the stream.
func (p *peer) describe(id uint32) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var words []string
	for _, h := range p.frames {
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

// TestHijackedResponsesHaveHintsAndTrailers checks that a handler that takes over a response can send informational
// headers before the final one, and a trailer after the body.
func TestHijackedResponsesHaveHintsAndTrailers(t *testing.T) {
	hints := http.Header{"Link": {"</a>", "</b>"}}
	plain := http.Header{"Content-Type": {"text/plain"}, "Trailer": {"X-Sum"}, "Connection": {"keep-alive"}, "Transfer-Encoding": {"chunked"}}
	for name, c := range map[string]struct {
		take func(exchange.Hijacked) error
		want string
	}{
		"a body": {func(to exchange.Hijacked) error {
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
		"a trailer after a body": {func(to exchange.Hijacked) error {
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
		"a trailer with invalid fields": {func(to exchange.Hijacked) error {
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
				return fmt.Errorf("a write after the trailer returns no error")
			}
			if to.Begin(200, nil) == nil || to.End(nil) == nil {
				return fmt.Errorf("Begin or End after the trailer returns no error")
			}
			return nil
		}, `:status=200 x=1.`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPeer(t, Config{}, hijacking(func(to exchange.Hijacked) {
					if err := c.take(to); err != nil {
						t.Error(err)
					}
					to.Conn.Close()
				}))
				p.must(p.get(1, "/"))
				synctest.Wait()
				if got := p.describe(1); got != c.want {
					t.Errorf("got %s, want %s", got, c.want)
				}
				p.must(p.get(3, "/")) // the connection continues
				synctest.Wait()
				if got := p.describe(3); got != c.want {
					t.Errorf("second request: got %s, want %s", got, c.want)
				}
			})
		})
	}
}

// TestHijackedResponsesFailAfterAReset checks that a handler that has taken over a response is notified when the client
// resets the stream, and can write neither header nor trailer afterwards.
func TestHijackedResponsesFailAfterAReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		taken := make(chan exchange.Hijacked)
		p := newPeer(t, Config{}, hijacking(func(to exchange.Hijacked) { taken <- to }))
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
				t.Errorf("%s: Begin or End after a reset returns no error", when)
			}
			to.Conn.Close()
		}
		synctest.Wait()
		if got, want := p.describe(1)+"|"+p.describe(3)+"|"+p.describe(5), "|:status=103|:status=103 :status=200"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

// TestHijackedRequestsSendContinueOnce checks that a client that waits for 100 Continue receives it once. It may then
// send as much as the handler reads, also in many frames.
func TestHijackedRequestsSendContinueOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		read := make(chan string)
		p := newPeer(t, Config{}, hijacking(func(to exchange.Hijacked) {
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
		p.must(p.request(1, false, ":method", "POST", ":scheme", "https", ":authority", "h", ":path", "/", "expect", "100-continue"))
		synctest.Wait()
		if got := p.describe(1); got != ":status=100" {
			t.Errorf("before the body: got %q, want status 100", got)
		}
		body := bytes.Repeat([]byte("the body"), defaultWindow/4) // twice the window
		for piece := range slices.Chunk(body, 128) {
			p.must(p.framer.WriteData(1, false, piece))
			synctest.Wait() // until it was read
		}
		p.must(p.framer.WriteData(1, true, nil))
		if got := <-read; got != string(body) {
			t.Errorf("read %d bytes, want the %d of the body", len(got), len(body))
		}
		synctest.Wait()
		if got, want := p.describe(1), ":status=100 :status=200 x-read=524288."; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

// TestBodiesEndTheirStreams checks that the last frame of a body of known size ends the stream, without an additional
// frame.
func TestBodiesEndTheirStreams(t *testing.T) {
	for size, want := range map[int]string{
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
			if got := p.describe(1); got != want {
				t.Errorf("size %d: got %s, want %s", size, got, want)
			}
		})
	}
}

// TestStatusesWithoutABody checks that the body of a response with status 204 or 304 is not sent.
func TestStatusesWithoutABody(t *testing.T) {
	for _, code := range []int{http.StatusNoContent, http.StatusNotModified} {
		synctest.Test(t, func(t *testing.T) {
			p := newPeer(t, Config{}, func(c exchange.Carrier, received time.Time) *exchange.Exchange {
				x := echo(c, received)
				x.Code = code
				return x
			})
			p.must(p.get(1, "/"))
			synctest.Wait()
			if got, want := p.describe(1), fmt.Sprintf(":status=%d,content-type=text/plain.", code); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		})
	}
}

// letters is a body with this text.
type letters string

// WriteTo implements io.WriterTo.
func (l letters) WriteTo(w io.Writer) (int64, error) {
	n, err := io.WriteString(w, string(l))
	return int64(n), err
}

// Close implements io.Closer.
func (letters) Close() error { return nil }
