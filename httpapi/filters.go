package httpapi

import (
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/storageversion"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/nethttp"
)

// timeoutFilter sets the deadlines of requests.
type timeoutFilter struct {
	timeout time.Duration
	auditor *auditor
}

// set limits the request to the server's timeout, or to the client's ?timeout= if that is
// shorter.
func (t *timeoutFilter) set(x *apiCall) bool {
	x.PrepareBy = x.Received.Add(t.timeout)
	if x.LongRunning() {
		return true
	}
	if asked := x.Query.Get("timeout"); asked != "" {
		d, err := time.ParseDuration(asked)
		if err != nil {
			return t.auditor.reject(x, apierrors.NewBadRequest("invalid timeout specified in the request URL - "+err.Error()))
		}
		if d > 0 && d < t.timeout {
			x.PrepareBy = x.Received.Add(d)
		}
	}
	x.Deadline = x.PrepareBy
	return true
}

// shutdownFilter rejects new requests during shutdown.
type shutdownFilter struct {
	refusing atomic.Bool  // new requests are rejected with 429
	serving  atomic.Int64 // requests that shutdown waits for
}

// enter rejects requests during shutdown, except health probes and scrapes of /metrics. Shutdown waits for leave,
// except for long-running requests, requests of this process, health probes and scrapes.
func (s *shutdownFilter) enter(x *apiCall) bool {
	if x.Carrier.Internal() {
		return true
	}
	if x.counted = !x.LongRunning(); x.counted {
		s.serving.Add(1) // before refusing is read, because the shutdown sets refusing first
	}
	if !s.refusing.Load() {
		return true
	}
	for _, prefix := range [...]string{"/readyz", "/livez", "/healthz", "/metrics"} {
		if strings.HasPrefix(x.Path, prefix) {
			s.leave(x)
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

// leave records that the request has ended. Further calls do nothing.
func (s *shutdownFilter) leave(x *apiCall) {
	if x.counted {
		s.serving.Add(-1)
		x.counted = false
	}
}

// storageVersionFilter runs upstream's filter, which rejects writes of resources whose storage version is not published
// yet.
type storageVersionFilter struct {
	versions storageversion.Manager // nil rejects nothing
	filter   *nethttp.Filter
}

func newStorageVersionFilter(versions storageversion.Manager) storageVersionFilter {
	return storageVersionFilter{versions, nethttp.NewFilter(func(next http.Handler) http.Handler {
		return filters.WithStorageVersionPrecondition(next, versions, legacyscheme.Codecs)
	})}
}

// check rejects a write of a resource whose storage version is not published yet.
func (s *storageVersionFilter) check(x *apiCall) bool {
	if s.versions == nil || s.versions.Completed() {
		return true
	}
	w := nethttp.NewRecorder()
	ctx := exchange.Context(x.Audit.Context(x.Base()), x.RequestInfo(), x.User, x.Received)
	if s.filter.Run(w, x.HTTP().WithContext(ctx)) != nil {
		return true
	}
	w.SendTo(&x.Response)
	return false
}
