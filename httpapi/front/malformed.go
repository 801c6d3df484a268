package front

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"k8s.io/klog/v2"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/socket"
)

// asterisk answers what is asked of the server as a whole, as net/http's does
// before anybody is authenticated.
func (ss *Session) asterisk(received time.Time) *exchange.Exchange {
	x := new(exchange.Exchange)
	x.Init(ss, received, nil)
	x.Head(http.StatusOK, "")
	return x
}

// malformed answers what could not be read as a request.
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

// frontLogger takes what fasthttp has to say of connections, which is of interest
// to who debugs one.
type frontLogger struct{}

func (frontLogger) Printf(format string, args ...any) {
	if klog.V(4).Enabled() {
		klog.V(4).InfoS("Connection", "message", fmt.Sprintf(format, args...))
	}
}
