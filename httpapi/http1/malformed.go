package http1

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"k8s.io/klog/v2"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/socket"
)

// asterisk answers "OPTIONS *", which asks about the server as a whole. Like net/http's
// server it does so before authentication.
func (ss *Session) asterisk(received time.Time) *exchange.Exchange {
	x := new(exchange.Exchange)
	x.Init(ss, received, nil)
	x.Head(http.StatusOK, "")
	return x
}

// malformed returns the answer to a request that could not be read because of err.
func (ss *Session) malformed(err error) *exchange.Exchange {
	x := new(exchange.Exchange)
	x.Init(ss, time.Time{}, nil)
	x.Reset()
	switch {
	case errors.Is(err, errHeaderTooLarge):
		x.Text(http.StatusRequestHeaderFieldsTooLarge, "431 Request Header Fields Too Large")
	case errors.Is(err, errExpectation):
		x.Head(http.StatusExpectationFailed, "")
	case socket.IsTimeout(err):
		x.Text(http.StatusRequestTimeout, "408 Request Timeout")
	default:
		x.Text(http.StatusBadRequest, "400 Bad Request")
	}
	x.Closing = true
	return x
}

// fasthttpLogger logs what fasthttp reports about connections. It does so for debugging only.
type fasthttpLogger struct{}

func (fasthttpLogger) Printf(format string, args ...any) {
	if klog.V(4).Enabled() {
		klog.V(4).InfoS("Connection", "message", fmt.Sprintf(format, args...))
	}
}
