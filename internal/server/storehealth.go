package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/server/healthz"
)

// storeHealth asks the store how it is once a second at most, however many want to know:
// those who come meanwhile share an answer.
type storeHealth struct {
	ask     func(context.Context) error
	timeout time.Duration // of a question

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

func newStoreHealth(ask func(context.Context) error, timeout time.Duration) *storeHealth {
	return &storeHealth{ask: ask, timeout: timeout}
}

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
		default: // on its way, by its timeout at the latest
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
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.timeout)
	defer cancel()
	a.err = h.ask(ctx)
}

// named returns a check of that name. All of them share their answers.
func (h *storeHealth) named(name string) healthz.HealthChecker {
	return healthz.NamedCheck(name, func(req *http.Request) error { return h.check(req.Context()) })
}

// storeChecks ask the stores how they are, for the checks of health and of readiness. The
// names are kube-apiserver's.
func (s *Server) storeChecks() (health, ready []healthz.HealthChecker) {
	etcd := &s.config.Upstream.Etcd.StorageConfig
	add := func(ask func(context.Context) error, name, readyName string) {
		sick := newStoreHealth(ask, etcd.HealthcheckTimeout)
		unready := sick // who asks for both asks the store once
		if etcd.ReadycheckTimeout != etcd.HealthcheckTimeout {
			unready = newStoreHealth(ask, etcd.ReadycheckTimeout)
		}
		health, ready = append(health, sick.named(name)), append(ready, unready.named(readyName))
	}
	add(s.store.Health, "etcd", "etcd-readiness")
	for i, a := range s.apart {
		add(a.store.Health, fmt.Sprintf("etcd-override-%d", i), fmt.Sprintf("etcd-override-readiness-%d", i))
	}
	return health, ready
}
