package server

import (
	"context"
	"errors"
	"net/http"
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

// storeCheck asks the store itself.
func storeCheck(name string, health func(context.Context) error) healthz.HealthChecker {
	return healthz.NamedCheck(name, func(req *http.Request) error {
		ctx, cancel := context.WithTimeout(req.Context(), storeTimeout)
		defer cancel()
		return health(ctx)
	})
}

// hookChecks has one check for each part of the bootstrap.
func hookChecks(b *bootstrap.Bootstrap) []healthz.HealthChecker {
	var checks []healthz.HealthChecker
	for _, hook := range b.Hooks() {
		checks = append(checks, healthz.NamedCheck(hook.Name, func(*http.Request) error { return hook.Check() }))
	}
	return checks
}
