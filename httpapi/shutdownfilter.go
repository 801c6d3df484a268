package httpapi

import (
	"net/http"
	"strings"
	"sync/atomic"
)

// shutdownFilter refuses new requests during shutdown.
type shutdownFilter struct {
	refused atomic.Bool // new requests are answered with 429
}

// check answers a request that is refused. Probes and scrapes never are.
func (l *shutdownFilter) check(x *apiCall) bool {
	if !l.refused.Load() || x.Carrier.Internal() {
		return true
	}
	for _, prefix := range [...]string{"/readyz", "/livez", "/healthz", "/metrics"} {
		if strings.HasPrefix(x.Path, prefix) {
			return true
		}
	}
	x.Del("Cache-Control") // upstream sets these later
	x.Del("Strict-Transport-Security")
	x.Set("Retry-After", "5")
	x.Text(http.StatusTooManyRequests, "The apiserver is shutting down, please try again later.")
	x.Closing = true
	return false
}
