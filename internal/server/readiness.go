package server

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/server/healthz"

	"github.com/larder-io/larder/internal/registry/bootstrap"
)

// storeTimeout bounds a health check's question to the store:
// --etcd-healthcheck-timeout of kube-apiserver.
const storeTimeout = 2 * time.Second

var (
	errNotLoaded = errors.New("not finished")
	errEnding    = errors.New("process is shutting down")
)

// readiness is what /readyz is asked beyond the health checks. It turns green
// once and red once.
type readiness struct {
	loaded, synced, ending atomic.Bool
}

// withdraw turns /readyz red for good.
func (r *readiness) withdraw() { r.ending.Store(true) }

// checks lists the questions of /readyz.
func (r *readiness) checks() []healthz.HealthChecker {
	return []healthz.HealthChecker{
		healthz.NamedCheck("cache-sync", after(&r.loaded)),
		healthz.NamedCheck("informer-sync", after(&r.synced)),
		healthz.NamedCheck("termination", func(*http.Request) error {
			if r.ending.Load() {
				return errEnding
			}
			return nil
		}),
	}
}

// after passes once flag is set.
func after(flag *atomic.Bool) func(*http.Request) error {
	return func(*http.Request) error {
		if !flag.Load() {
			return errNotLoaded
		}
		return nil
	}
}

// storeHealth asks the store how it is once a second at most, however many want to know:
// those who come meanwhile share an answer.
type storeHealth struct {
	ask func(context.Context) error

	mu   sync.Mutex
	last *answer // guarded by mu
}

// storeInterval is how old the answer may be that a health check gives.
const storeInterval = time.Second

// answer is one of the store's.
type answer struct {
	asked time.Time
	given chan struct{} // closed once err is set
	err   error
}

func newStoreHealth(ask func(context.Context) error) *storeHealth { return &storeHealth{ask: ask} }

// check asks the store itself, or waits for what somebody else was told.
func (h *storeHealth) check(ctx context.Context) error {
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
func (h *storeHealth) take(now time.Time) (a *answer, mine bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.last != nil {
		select {
		case <-h.last.given:
			if now.Sub(h.last.asked) < storeInterval {
				return h.last, false
			}
		default: // on its way, by storeTimeout at the latest
			return h.last, false
		}
	}
	h.last = &answer{asked: now, given: make(chan struct{})}
	return h.last, true
}

// fill asks. Others wait for the answer: that the asker leaves does not end it.
func (h *storeHealth) fill(ctx context.Context, a *answer) {
	defer close(a.given)
	a.err = errors.New("server: the store's health check panicked")
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	a.err = h.ask(ctx)
}

// named returns a check of that name. All of them share their answers.
func (h *storeHealth) named(name string) healthz.HealthChecker {
	return healthz.NamedCheck(name, func(req *http.Request) error { return h.check(req.Context()) })
}

// hookChecks has one check for each part of the bootstrap.
func hookChecks(b *bootstrap.Bootstrap) []healthz.HealthChecker {
	var checks []healthz.HealthChecker
	for _, hook := range b.Hooks() {
		checks = append(checks, healthz.NamedCheck(hook.Name, func(*http.Request) error { return hook.Check() }))
	}
	return checks
}
