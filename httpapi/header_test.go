package httpapi

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/larder-io/larder/httpapi/routes"
)

// TestHeaderEndsAtOnePlace checks that a header with a line that ends with LF alone is refused, even if it arrives in
// pieces. Nothing after it is read. net/http's server and some proxies accept such a line, other proxies do not, so
// that they see the header end elsewhere.
func TestHeaderEndsAtOnePlace(t *testing.T) {
	const next = "GET /next HTTP/1.1\r\nHost: h\r\n\r\n"
	lines := []string{"GET /x HTTP/1.1", "Host: h", "A: b", ""}
	for mix := range 1 << len(lines) {
		for count := 1; count < len(lines); count++ { // of lines before the empty one
			var script strings.Builder
			bare := false
			for i, line := range append(lines[:count:count], "") {
				end := "\r\n"
				if mix>>i&1 == 1 {
					end, bare = "\n", true
				}
				script.WriteString(line + end)
			}
			script.WriteString(next)
			want := []int{http.StatusOK, http.StatusOK}
			switch {
			case bare:
				want = []int{http.StatusBadRequest}
			case count == 1: // without Host
				want = []int{http.StatusBadRequest}
			}
			for _, piece := range []int{1, 2, script.Len()} {
				if got := statusesOf(t, script.String(), piece); !slices.Equal(got, want) {
					t.Errorf("%q in pieces of %d: got status %v, want %v", script.String(), piece, got, want)
				}
			}
		}
	}
}

// statusesOf returns the status codes of the responses to a script that arrives in pieces.
func statusesOf(t *testing.T, script string, piece int) (codes []int) {
	t.Helper()
	s := newServer(Config{Timeouts: Timeouts{RequestTimeout: time.Minute}})
	defer s.cancel()
	routes := routes.New()
	routes.HandlePrefix("/", http.HandlerFunc(echo))
	s.table.Store(routes)
	c := &scriptConn{in: bytes.NewReader([]byte(script))}
	s.http1.Session(&pieces{c, piece}).Serve()
	s.handlers.Wait()
	for in := bufio.NewReader(&c.out); ; {
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			return codes
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		codes = append(codes, resp.StatusCode)
	}
}

// pieces returns at most a given number of bytes at once.
type pieces struct {
	*scriptConn
	most int
}

func (c *pieces) Read(p []byte) (int, error) { return c.scriptConn.Read(p[:min(len(p), c.most)]) }
