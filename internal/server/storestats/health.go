package storestats

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/server/healthz"
)

// Health asks the store how it is once a second at most, however many want to know:
// those who come meanwhile share an answer.
type Health struct {
	ask     func(context.Context) error
	timeout time.Duration // of a question

	mu   sync.Mutex
	last *answer // guarded by mu
}

// healthInterval is how old the answer may be that a health check gives.
const healthInterval = time.Second

// answer is one of the store's.
type answer struct {
	asked time.Time
	given chan struct{} // closed once err is set
	err   error
}

// NewHealth returns what asks so, and waits that long for an answer.
func NewHealth(ask func(context.Context) error, timeout time.Duration) *Health {
	return &Health{ask: ask, timeout: timeout}
}

// check asks the store itself, or waits for what somebody else was told.
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

// take returns the answer to give, and whether the caller is to ask for it.
func (h *Health) take(now time.Time) (a *answer, mine bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.last != nil {
		select {
		case <-h.last.given:
			if now.Sub(h.last.asked) < healthInterval {
				return h.last, false
			}
		default: // on its way, by its timeout at the latest
			return h.last, false
		}
	}
	h.last = &answer{asked: now, given: make(chan struct{})}
	return h.last, true
}

// fill asks. Others wait for the answer: that the asker leaves does not end it.
func (h *Health) fill(ctx context.Context, a *answer) {
	defer close(a.given)
	a.err = errors.New("server: the store's health check panicked")
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.timeout)
	defer cancel()
	a.err = h.ask(ctx)
}

// Named returns a check of that name. All of them share their answers.
func (h *Health) Named(name string) healthz.HealthChecker {
	return healthz.NamedCheck(name, func(req *http.Request) error { return h.check(req.Context()) })
}
