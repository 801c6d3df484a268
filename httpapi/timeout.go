package httpapi

import (
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// timeoutFilter gives requests their deadlines.
type timeoutFilter struct {
	timeout time.Duration
	auditor *auditor
}

// set bounds the request by the server's timeout, or the client's if that
// is shorter.
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
