package server

import (
	"errors"
	"net/http"
	"sync/atomic"
)

var errNotServing = errors.New("server: the API is not served yet")

// lateTransport is the transport of the process's own clients. They are built
// before the front door that it calls; until attach they are refused.
type lateTransport struct {
	next atomic.Pointer[http.RoundTripper]
}

func (t *lateTransport) attach(next http.RoundTripper) { t.next.Store(&next) }

// RoundTrip implements http.RoundTripper.
func (t *lateTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	next := t.next.Load()
	if next == nil {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, errNotServing
	}
	return (*next).RoundTrip(req)
}
