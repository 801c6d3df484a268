package httpapi

import (
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// timeoutFilter sets the deadlines of requests.
type timeoutFilter struct {
	timeout time.Duration
	auditor *auditor
}

// set limits the request to the server's timeout, or to the client's ?timeout= if that is
// shorter.
func (b *timeoutFilter) set(x *apiCall) bool {
	if x.LongRunning() {
		return true
	}
	timeout := b.timeout
	if asked := x.Query.Get("timeout"); asked != "" {
		d, err := time.ParseDuration(asked)
		if err != nil {
			refusal := apierrors.NewBadRequest("invalid timeout specified in the request URL - " + err.Error())
			b.auditor.refuse(x, refusal.Error())
			x.Fail(refusal)
			return false
		}
		if d > 0 && d < timeout {
			timeout, x.Hurried = d, true
		}
	}
	x.Deadline = x.Received.Add(timeout)
	return true
}
