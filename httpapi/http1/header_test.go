package http1

import (
	"bufio"
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"
	"pgregory.net/rapid"

	"github.com/larder-io/larder/httpapi/exchange"
)

func TestInspectRejectsAmbiguousHeaders(t *testing.T) {
	for block, want := range map[string]exchange.Facts{
		"": {},
		"Host: h\r\nAccept: a\r\nAccept: b\r\n\r\n": {},
		"A-_.~!#$%&'*+^`|1: b\r\n\r\n":              {},
		"Impersonate-User: x\r\n\r\n":               {Impersonates: true},
		"iMPERSONATE-eXTRA-a: x\r\n\r\n":            {Impersonates: true},
		"Impersonate: x\r\n\r\n":                    {},
		"x-remote-USER: x\r\n\r\n":                  {OtherCredentials: true},
		"X-Remote: x\r\n\r\n":                       {},
		"Sec-WebSocket-Protocol: a\r\n\r\n":         {OtherCredentials: true},
		"Host: a b\r\n":                             {Code: 400, Refusal: "400 Bad Request: malformed Host header"},
		"Host: a\r\nhost: b\r\n":                    {Code: 400, Refusal: "400 Bad Request: repeated Host header"},
		"authorization: a\r\nAUTHORIZATION: b\r\n":  {Code: 400, Refusal: "400 Bad Request: repeated Authorization header"},
		"Content-Type: a\r\nContent-type: b\r\n":    {Code: 400, Refusal: "400 Bad Request: repeated Content-Type header"},
		"transfer-encoding: Chunked \r\n":           {},
		"Transfer-Encoding: identity\r\n":           {Code: 400, Refusal: "400 Bad Request: unsupported transfer encoding"},
		" A: b\r\n":                                 {Code: 400, Refusal: "400 Bad Request: malformed header name"},
		"A : b\r\n":                                 {Code: 400, Refusal: "400 Bad Request: malformed header name"},
		"A\r\n":                                     {Code: 400, Refusal: "400 Bad Request: malformed header name"},
		"\x80: b\r\n":                               {Code: 400, Refusal: "400 Bad Request: malformed header name"},
	} {
		if got, _ := inspect([]byte(block)); got != want {
			t.Errorf("%q: got %+v, want %+v", block, got, want)
		}
	}
}

// TestHeaderEndReadsEachByteOnce checks that the end of a header does not depend on the pieces in which it arrives,
// and that find examines each byte once.
func TestHeaderEndReadsEachByteOnce(t *testing.T) {
	piece := rapid.SampledFrom([]string{"\r\n", "\n", "\r", "A: b", "A: b\r\n", "Host: h\r\n", "\r\n\r\n", "\n\n", "\n\r\n"})
	rapid.Check(t, func(t *rapid.T) {
		header := []byte("GET / HTTP/1.1" + strings.Join(rapid.SliceOfN(piece, 0, 8).Draw(t, "pieces"), ""))
		var drip headerEnd
		var got string
		for n := 1; n <= len(header) && got == ""; n++ {
			block := bytes.Clone(header[:n])
			// Lines that have ended now contain an end, which a second search would find.
			for i := 0; i+4 <= drip.line; i++ {
				copy(block[i:], "\r\n\r\n")
			}
			whole, err := drip.find(block)
			if whole || err != nil {
				got = fmt.Sprint(n, whole, err)
			}
		}
		if want := slowHeaderEnd(header); got != want {
			t.Fatalf("%q: got %s, want %s", header, got, want)
		}
	})
}

// slowHeaderEnd scans the whole header again after each byte.
func slowHeaderEnd(header []byte) string {
	for n := 1; n <= len(header); n++ {
		block := string(header[:n])
		line, _, ok := strings.Cut(block, "\n")
		switch {
		case !ok:
		case !isRequestLine([]byte(strings.TrimSuffix(line, "\r"))):
			return fmt.Sprint(n, false, errRequestLine)
		case strings.HasSuffix(block, "\n") && !strings.HasSuffix(block, "\r\n"):
			return fmt.Sprint(n, false, errBareLine)
		case strings.HasSuffix(block, "\r\n\r\n"):
			return fmt.Sprint(n, true, nil)
		}
	}
	return ""
}

// TestCompleteHeadersAreParsed checks that fasthttp can parse every header that find considers complete.
func TestCompleteHeadersAreParsed(t *testing.T) {
	for _, header := range []string{
		"GET / HTTP/1.1\r\nHost: h\r\n\r\n", "GET / HTTP/1.0\r\n\r\n", "GET / HTTP/1.1\r\nHost: h\r\nA: b\r\n\r\n",
	} {
		for n := 1; n <= len(header); n++ {
			var end headerEnd
			whole, err := end.find([]byte(header[:n]))
			if whole != (n == len(header)) || err != nil {
				t.Errorf("%q: complete: %t, error %v; want %t", header[:n], whole, err, n == len(header))
			}
		}
		var h fasthttp.RequestHeader
		if err := h.Read(bufio.NewReader(strings.NewReader(header))); err != nil {
			t.Errorf("%q: %v", header, err)
		}
	}
}
