package storestats

import (
	"context"
	"net/http"
	"time"

	"golang.org/x/sync/semaphore"
	"k8s.io/apiserver/pkg/server/healthz"
)

// Health reads the store's health at most once a second. Checks within a second share the result.
type Health struct {
	ask     func(context.Context) error
	timeout time.Duration // of ask

	mu      *semaphore.Weighted // guards the fields below; a semaphore, because waiting must be cancelable
	checked time.Time           // when ask returned err
	err     error
}

// healthInterval is how long checks reuse a result.
const healthInterval = time.Second

// NewHealth returns a Health that calls ask with a timeout.
func NewHealth(ask func(context.Context) error, timeout time.Duration) *Health {
	return &Health{ask: ask, timeout: timeout, mu: semaphore.NewWeighted(1)}
}

// check reads the store's health, unless another check has just done so. The end of ctx does not cancel the read,
// because other checks wait for the result.
func (h *Health) check(ctx context.Context) error {
	if err := h.mu.Acquire(ctx, 1); err != nil {
		return err
	}
	defer h.mu.Release(1)
	if time.Since(h.checked) < healthInterval {
		return h.err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.timeout)
	defer cancel()
	h.err = h.ask(ctx)
	h.checked = time.Now()
	return h.err
}

// Named returns a check of that name. A request that excludes group also excludes this check. All checks of h
// share its results.
func (h *Health) Named(name, group string) healthz.HealthChecker {
	return healthz.NamedGroupedCheck(name, group, func(req *http.Request) error { return h.check(req.Context()) })
}
