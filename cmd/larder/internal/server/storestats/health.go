package storestats

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/server/healthz"
)

// Health reads the store's health at most once a second, however many checks there are:
// checks within a second share an answer.
type Health struct {
	ask     func(context.Context) error
	timeout time.Duration // of ask

	mu   sync.Mutex
	last *answer // guarded by mu
}

// healthInterval is the largest age of an answer that a check returns.
const healthInterval = time.Second

// answer is the result of one call of ask, perhaps in the future.
type answer struct {
	asked time.Time
	given chan struct{} // closed once err is set
	err   error
}

// NewHealth returns a Health that calls ask, and waits for it no longer than timeout.
func NewHealth(ask func(context.Context) error, timeout time.Duration) *Health {
	return &Health{ask: ask, timeout: timeout}
}

// check asks the store, or waits for the answer to another check's call.
func (h *Health) check(ctx context.Context) error {
	a, mine := h.take(time.Now())
	if mine {
		h.fill(ctx, a)
	}
	select {
	case <-a.given:
		return a.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// take returns the answer that a check waits for, and whether the caller must call fill for
// it.
func (h *Health) take(now time.Time) (a *answer, mine bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.last != nil {
		select {
		case <-h.last.given:
			if now.Sub(h.last.asked) < healthInterval {
				return h.last, false
			}
		default: // another check is asking, and has an answer after the timeout at the latest
			return h.last, false
		}
	}
	h.last = &answer{asked: now, given: make(chan struct{})}
	return h.last, true
}

// fill asks the store. Other checks wait for the answer, and so the end of ctx does not cancel
// it.
func (h *Health) fill(ctx context.Context, a *answer) {
	defer close(a.given)
	a.err = errors.New("server: the health check of etcd panicked")
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.timeout)
	defer cancel()
	a.err = h.ask(ctx)
}

// Named returns a check of that name. A request that excludes group also excludes this check. All checks of h
// share its answers.
func (h *Health) Named(name, group string) healthz.HealthChecker {
	return healthz.NamedGroupedCheck(name, group, func(req *http.Request) error { return h.check(req.Context()) })
}
