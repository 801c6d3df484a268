package storestats

import (
	"context"
	"net/http"
	"time"

	"golang.org/x/sync/semaphore"
	"k8s.io/apiserver/pkg/server/healthz"
)

// Health reads the store's health at most once a second, however many checks there are:
// checks within a second share an answer.
type Health struct {
	ask     func(context.Context) error
	timeout time.Duration // of ask

	turn  *semaphore.Weighted // of the check that may ask; it guards the rest
	asked time.Time           // when ask returned err
	err   error
}

// healthInterval is how long checks return an answer after it has come.
const healthInterval = time.Second

// NewHealth returns a Health that calls ask, and waits for it no longer than timeout.
func NewHealth(ask func(context.Context) error, timeout time.Duration) *Health {
	return &Health{ask: ask, timeout: timeout, turn: semaphore.NewWeighted(1)}
}

// check asks the store, unless another check has just done so. Other checks wait for the answer, so the end of
// ctx does not cancel it.
func (h *Health) check(ctx context.Context) error {
	if err := h.turn.Acquire(ctx, 1); err != nil {
		return err
	}
	defer h.turn.Release(1)
	if time.Since(h.asked) < healthInterval {
		return h.err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.timeout)
	defer cancel()
	h.err = h.ask(ctx)
	h.asked = time.Now()
	return h.err
}

// Named returns a check of that name. A request that excludes group also excludes this check. All checks of h
// share its answers.
func (h *Health) Named(name, group string) healthz.HealthChecker {
	return healthz.NamedGroupedCheck(name, group, func(req *http.Request) error { return h.check(req.Context()) })
}
