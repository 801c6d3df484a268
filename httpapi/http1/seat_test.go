package http1

import (
	"bytes"
	"net/http"
	"testing"
	"time"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/internal/flow"
)

// gaugedConn is a scriptConn that records the number of seats held at its last write.
type gaugedConn struct {
	scriptConn
	gauge *flow.Gauge
	held  int64
}

func (c *gaugedConn) Write(p []byte) (int, error) {
	c.held = c.gauge.Add(0)
	return c.scriptConn.Write(p)
}

// TestLargeResponsesHoldTheirSeat checks that a large response holds its seat while it is sent, even if the handler has
// not read the body of the request.
func TestLargeResponsesHoldTheirSeat(t *testing.T) {
	for name, request := range map[string]string{
		"no body":       "GET /a HTTP/1.1\r\nHost: h\r\n\r\n",
		"unread body":   "GET /a HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\na",
		"unread chunks": "GET /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
	} {
		var gauge flow.Gauge
		c := &gaugedConn{scriptConn: scriptConn{in: bytes.NewReader([]byte(request))}, gauge: &gauge}
		New(Config{Limits: Limits{MaxHeaderBytes: 1 << 20}, BodyTimeout: idleTimeout, Draining: make(chan struct{}), Handler: func(c exchange.Carrier, received time.Time) *exchange.Exchange {
			x := new(exchange.Exchange)
			x.Init(c, received, nil)
			gauge.Add(1)
			x.Seat.Gauge = &gauge
			x.Send(http.StatusOK, "", make([]byte, 2*exchange.RecordSize))
			x.ReleaseSeat()
			return x
		}}).serveScript(c, func() {})
		if c.held != 1 || c.out.Len() < 2*exchange.RecordSize {
			t.Errorf("%s: %d seats are held while %d bytes are sent, want 1", name, c.held, c.out.Len())
		}
		if n := gauge.Add(0); n != 0 {
			t.Errorf("%s: %d seats are held at the end, want 0", name, n)
		}
	}
}
