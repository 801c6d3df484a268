package httpapi

import (
	"context"
	"sync/atomic"
	"time"
)

// deadlineStep is how much later than it should the shared deadline of a request may
// be. A timer for each request would cost a twentieth of a small one (B10). It shows in
// reads that wait for a cache or an authorizer until a deadline which the client did not
// name: they are answered 504 after 60 to 60.25 s. What a client names with ?timeout= ends
// then, and so does every net/http handler.
const deadlineStep = 250 * time.Millisecond

// deadlines gives requests that begin at about the same time one context, which ends
// when the last of them must have ended.
type deadlines struct {
	base    context.Context
	timeout time.Duration
	current atomic.Pointer[deadline]
}

// deadline is that of requests that begin in [from, to).
type deadline struct {
	from, to time.Time
	ctx      context.Context
	cancel   context.CancelFunc
}

func (d *deadlines) init(base context.Context, timeout time.Duration) {
	d.base, d.timeout = base, timeout
}

// at returns the context of a request that begins at now.
func (d *deadlines) at(now time.Time) context.Context {
	known := d.current.Load()
	if known != nil && !now.Before(known.from) && now.Before(known.to) {
		return known.ctx
	}
	fresh := &deadline{from: now, to: now.Add(deadlineStep)}
	fresh.ctx, fresh.cancel = context.WithDeadline(d.base, fresh.to.Add(d.timeout))
	d.current.CompareAndSwap(known, fresh) // else it serves this request alone
	return fresh.ctx
}

// prepared is bounded for what comes before a request is served: for one that is
// long-running, too, which has as long for that as others have for all.
func (x *exchange) prepared() (context.Context, context.CancelFunc) {
	if x.deadline.IsZero() {
		return x.s.deadlines.at(x.received), func() {}
	}
	return x.bounded()
}

// bounded returns a context that ends at the request's deadline, and what must be
// called when it is not needed any more.
func (x *exchange) bounded() (context.Context, context.CancelFunc) {
	switch {
	case x.deadline.IsZero():
		return x.s.base, func() {}
	case x.hurried:
		return context.WithDeadline(x.s.base, x.deadline)
	default:
		return x.s.deadlines.at(x.received), func() {}
	}
}
