package http2

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/internal/proctest"
)

// scripted is a connection whose client sends fixed bytes and reads every response.
type scripted struct {
	net.Conn
	in *bytes.Reader
}

func (s scripted) Read(p []byte) (int, error)     { return s.in.Read(p) }
func (scripted) Write(p []byte) (int, error)      { return len(p), nil }
func (scripted) Close() error                     { return nil }
func (scripted) SetDeadline(time.Time) error      { return nil }
func (scripted) SetReadDeadline(time.Time) error  { return nil }
func (scripted) SetWriteDeadline(time.Time) error { return nil }

// script returns the bytes of a client that sends one request with fields, in frames of the size piece.
func script(t *testing.T, fields []hpack.HeaderField, piece int) []byte {
	var out, block bytes.Buffer
	out.WriteString(http2.ClientPreface)
	framer, encoder := http2.NewFramer(&out, nil), hpack.NewEncoder(&block)
	for _, f := range append([]hpack.HeaderField{
		{Name: ":method", Value: "GET"}, {Name: ":scheme", Value: "https"}, {Name: ":path", Value: "/"}, {Name: ":authority", Value: "h"},
	}, fields...) {
		if err := encoder.WriteField(f); err != nil {
			t.Fatal(err)
		}
	}
	err := framer.WriteSettings()
	for first := true; err == nil && (first || block.Len() > 0); first = false {
		p := block.Next(piece)
		if whole := block.Len() == 0; first {
			err = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p, EndStream: true, EndHeaders: whole})
		} else {
			err = framer.WriteContinuation(1, whole, p)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// maxAllocated is the maximum number of bytes allocated for each byte of a header. The decoder makes strings and lines,
// and buffers grow.
const maxAllocated = 40

// TestHeaderCostIsLinear checks that reading a header takes work and memory in proportion to its decoded size,
// whatever its encoding.
func TestHeaderCostIsLinear(t *testing.T) {
	field := func(name, value string) hpack.HeaderField { return hpack.HeaderField{Name: name, Value: value} }
	for _, test := range []struct {
		name  string
		n     int // the test compares it with 8*n
		piece int
		field func(i int) hpack.HeaderField
	}{
		{"fields", 2000, 16 << 10, func(i int) hpack.HeaderField { return field(fmt.Sprint("a", i), "b") }},
		{"cookies", 2000, 16 << 10, func(i int) hpack.HeaderField { return field("cookie", fmt.Sprint("a=", i)) }},
		{"cookies between other fields", 2000, 16 << 10, func(i int) hpack.HeaderField {
			return field([]string{"cookie", "x"}[i%2], fmt.Sprint("a=", i))
		}},
		{"small pieces", 200, 100, func(i int) hpack.HeaderField { return field("a", fmt.Sprint("value number ", i)) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			proctest.OfProcess.CheckGrowth(t, test.n, func(n int) func() {
				var fields []hpack.HeaderField
				for i := range n {
					fields = append(fields, test.field(i))
				}
				sent, handled := script(t, fields, test.piece), 0
				s := New(Config{
					MaxHeaderBytes: http.DefaultMaxHeaderBytes, HeaderTimeout: time.Hour, IdleTimeout: time.Hour, WriteTimeout: time.Hour,
					Handler: func(c exchange.Carrier, received time.Time) *exchange.Exchange {
						handled++
						x := new(exchange.Exchange)
						x.Init(c, received, nil)
						x.Text(http.StatusUnauthorized, "")
						return x
					},
				})
				weight := int64(0)
				for _, f := range fields {
					weight += int64(f.Size())
				}
				return func() {
					handled = 0
					allocated := allocatedBytes()
					defer func() {
						if got := allocatedBytes() - allocated; got > maxAllocated*weight+1<<20 {
							t.Errorf("%d bytes were allocated for a header of %d, want at most %d", got, weight, maxAllocated*weight+1<<20)
						}
					}()
					s.NewConn(scripted{in: bytes.NewReader(sent)}).Serve()
					if handled != 1 {
						t.Fatalf("%d requests were handled, want 1", handled)
					}
				}
			})
		})
	}
}

// allocatedBytes returns the number of bytes that the process has allocated so far, including freed ones.
func allocatedBytes() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.TotalAlloc)
}

// TestCookiesAreJoined checks that cookies sent separately, with other fields between them, become one field.
func TestCookiesAreJoined(t *testing.T) {
	sent := script(t, []hpack.HeaderField{
		{Name: "cookie", Value: "a=1"}, {Name: "x", Value: "y"}, {Name: "cookie", Value: "b=2"}, {Name: "cookie", Value: "c=3"},
	}, 5)
	var got []string
	s := New(Config{
		MaxHeaderBytes: http.DefaultMaxHeaderBytes, HeaderTimeout: time.Hour, IdleTimeout: time.Hour, WriteTimeout: time.Hour,
		Handler: func(c exchange.Carrier, received time.Time) *exchange.Exchange {
			x := new(exchange.Exchange)
			x.Init(c, received, nil)
			for name, values := range x.CopyHeaders(func(string) bool { return true }) {
				got = append(got, name+": "+strings.Join(values, "|"))
			}
			slices.Sort(got)
			x.Text(http.StatusOK, "")
			return x
		},
	})
	s.NewConn(scripted{in: bytes.NewReader(sent)}).Serve()
	if want := []string{"Cookie: a=1; b=2; c=3", "X: y"}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got header %q, want %q", got, want)
	}
}
