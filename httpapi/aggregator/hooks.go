package aggregator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/tools/cache"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"

	"github.com/larder-io/larder/internal/registry/bootstrap"
	"github.com/larder-io/larder/internal/registry/builtin"
)

// Parts of the start, by the names of upstream's health checks.
const (
	hookRegistration = "poststarthook/apiservice-registration-controller"
	hookDiscovery    = "poststarthook/apiservice-discovery-controller"
	hookCertificate  = "poststarthook/aggregator-reload-proxy-client-cert"

	// completion checks that all built-in versions have available APIServices.
	completion = "autoregister-completion"
)

// startedHooks are done once Run has started the controllers.
var startedHooks = []string{
	"poststarthook/start-kube-aggregator-informers", "poststarthook/kube-apiserver-autoregistration",
	"poststarthook/apiservice-status-local-available-controller", "poststarthook/apiservice-status-remote-available-controller",
	"poststarthook/apiservice-openapi-controller", "poststarthook/apiservice-openapiv3-controller",
}

// newHooks returns the steps of the start that must be done before the server is ready.
func newHooks(started chan struct{}, certificate bool) map[string]chan struct{} {
	h := map[string]chan struct{}{hookRegistration: make(chan struct{}), hookDiscovery: make(chan struct{})}
	for _, name := range startedHooks {
		h[name] = started
	}
	if certificate {
		h[hookCertificate] = started
	}
	return h
}

// Checks lists the checks of health and readiness.
func (a *Aggregator) Checks() []healthz.HealthChecker {
	var checks []healthz.HealthChecker
	for _, name := range slices.Sorted(maps.Keys(a.hooks)) {
		checks = append(checks, healthz.NamedCheck(name, func(*http.Request) error {
			if isClosed(a.hooks[name]) {
				return nil
			}
			return a.unlessAllowed(bootstrap.ErrNotFinished)
		}))
	}
	return append(checks, healthz.NamedCheck(completion, func(*http.Request) error { return a.unlessAllowed(a.pending.check()) }))
}

// AllowUnready lets all checks pass from now on, for example because APIServices cannot be read. The steps
// continue. Until they are done, requests for unknown paths get 503.
func (a *Aggregator) AllowUnready() { a.mayBeUnready.Store(true) }

func (a *Aggregator) unlessAllowed(err error) error {
	if a.mayBeUnready.Load() {
		return nil
	}
	return err
}

// WaitReady blocks until none of the checks fails.
func (a *Aggregator) WaitReady(ctx context.Context) error {
	for name, done := range a.hooks {
		if !await(ctx, done) {
			return fmt.Errorf("aggregator: %s: %w", name, context.Cause(ctx))
		}
	}
	if !await(ctx, a.pending.none) {
		return errors.Join(fmt.Errorf("aggregator: %s: %w", completion, context.Cause(ctx)), a.pending.check())
	}
	return nil
}

// await blocks until done is closed; it returns false if ctx ends before.
func await(ctx context.Context, done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return isClosed(done)
	}
}

func isClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// Registered reports whether all APIServices that existed at the start have been seen. Until
// then it is not known whether a path is served.
func (a *Aggregator) Registered() bool { return isClosed(a.hooks[hookRegistration]) }

// builtIn makes the APIServices of the built-in versions, as kubernetes
// pkg/controlplane/apiserver/aggregator.go does. A version without a priority has no APIService. The
// version of APIServices has none, either.
func (a *Aggregator) builtIn() []*apiregistrationv1.APIService {
	var list []*apiregistrationv1.APIService
	priorities := builtin.Priorities()
	for _, g := range a.config.Registry.Groups() {
		for _, v := range g.Versions {
			priority, ok := priorities[v.GroupVersion]
			if !ok || g.Name == apiregistrationv1.GroupName {
				continue
			}
			list = append(list, localService(v.GroupVersion, priority))
		}
	}
	return list
}

// localService returns the APIService of a version that this server serves.
func localService(gv schema.GroupVersion, priority builtin.Priority) *apiregistrationv1.APIService {
	return &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: gv.Version + "." + gv.Group},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: gv.Group, Version: gv.Version,
			GroupPriorityMinimum: priority.Group, VersionPriority: priority.Version,
		},
	}
}

// pending is the set of APIServices of this server that have never been seen available.
type pending struct {
	none chan struct{} // closed when names is empty

	mu    sync.Mutex
	names map[string]bool
}

func (p *pending) init(all []*apiregistrationv1.APIService) {
	p.none, p.names = make(chan struct{}), make(map[string]bool, len(all))
	for _, apiService := range all {
		p.names[apiService.Name] = true
	}
	if len(p.names) == 0 {
		close(p.none)
	}
}

// see removes an APIService from p if it is available.
func (p *pending) see(apiService *apiregistrationv1.APIService) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.names[apiService.Name] || !helper.IsAPIServiceConditionTrue(apiService, apiregistrationv1.Available) {
		return
	}
	delete(p.names, apiService.Name)
	if len(p.names) == 0 {
		close(p.none)
	}
}

func (p *pending) check() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.names) > 0 {
		return fmt.Errorf("missing APIService: %v", slices.Sorted(maps.Keys(p.names)))
	}
	return nil
}

// watchPending lets pending see the APIServices of the informer. The channel is closed once
// it has seen all that existed at the start.
func (a *Aggregator) watchPending() (<-chan struct{}, error) {
	registration, err := a.apiServices().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { a.pending.see(obj.(*apiregistrationv1.APIService)) },
		UpdateFunc: func(_, obj any) { a.pending.see(obj.(*apiregistrationv1.APIService)) },
	})
	if err != nil {
		return nil, err
	}
	return registration.HasSyncedChecker().Done(), nil
}
