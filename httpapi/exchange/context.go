package exchange

import (
	"context"
	"sync/atomic"
	"time"

	auditapi "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// Context adds to ctx what apiserver's handlers, registries and admission
// plugins read from a request's context. Handlers add the namespace themselves.
func Context(ctx context.Context, info *apirequest.RequestInfo, u user.Info, received time.Time) context.Context {
	ctx = apirequest.WithReceivedTimestamp(ctx, received)
	ctx = apirequest.WithRequestInfo(ctx, info)
	if _, ok := apirequest.LatencyTrackersFrom(ctx); !ok {
		ctx = apirequest.WithLatencyTrackers(ctx)
	}
	if u != nil {
		ctx = apirequest.WithUser(ctx, u)
	}
	return Unaudited(ctx)
}

// Unaudited returns ctx with an audit context that records nothing, unless it has one. Patches need
// one, and a blank one would make all handlers encode every object for the record.
func Unaudited(ctx context.Context) context.Context {
	if audit.AuditContextFrom(ctx) != nil {
		return ctx
	}
	ctx = audit.WithAuditContext(ctx)
	// Only a second Init fails.
	_ = audit.AuditContextFrom(ctx).Init(audit.RequestAuditConfig{Level: auditapi.LevelNone}, nil)
	return ctx
}

// deadlineStep is how much later than the exact deadline a shared one may be. A timer for each
// request would cost a twentieth of a small request (B10). Reads that wait for a cache or an
// authorizer are answered 504 after 60 to 60.25 s. Deadlines from ?timeout= and of net/http
// handlers are exact.
const deadlineStep = 250 * time.Millisecond

// Deadlines gives requests that begin at about the same time one context, which ends at the latest
// of their deadlines.
type Deadlines struct {
	base    context.Context
	timeout time.Duration
	current atomic.Pointer[deadline]
	writes  *Deadlines // shorter ones, for writes; nil in those themselves
}

// maxWriteTime limits the time of a write (apiserver pkg/endpoints/handlers/rest.go,
// requestTimeoutUpperBound).
const maxWriteTime = 34 * time.Second

// deadline is the shared deadline of requests that begin in [from, to).
type deadline struct {
	from, to time.Time
	ctx      context.Context
	cancel   context.CancelFunc
}

// NewDeadlines returns Deadlines that give every request timeout. Their contexts also end with base.
func NewDeadlines(base context.Context, timeout time.Duration) *Deadlines {
	return &Deadlines{base: base, timeout: timeout, writes: &Deadlines{base: base, timeout: min(timeout, maxWriteTime)}}
}

// Base returns the context that all the contexts end with.
func (d *Deadlines) Base() context.Context { return d.base }

// At returns the context of a request that begins at now.
func (d *Deadlines) At(now time.Time) context.Context {
	known := d.current.Load()
	if known != nil && !now.Before(known.from) && now.Before(known.to) {
		return known.ctx
	}
	fresh := &deadline{from: now, to: now.Add(deadlineStep)}
	fresh.ctx, fresh.cancel = context.WithDeadline(d.base, fresh.to.Add(d.timeout))
	d.current.CompareAndSwap(known, fresh) // else it serves this request alone
	return fresh.ctx
}
