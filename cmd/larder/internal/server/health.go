package server

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"github.com/larder-io/larder/cmd/larder/internal/server/storestats"
	"github.com/larder-io/larder/httpapi"
	"github.com/larder-io/larder/internal/registry/bootstrap"
	"github.com/larder-io/larder/kv"
)

// startHook is the prefix of kube-apiserver's names for the checks of post-start hooks.
const startHook = "poststarthook/"

// checkOrder returns the names of kube-apiserver's checks in its order, except ping, log and shutdown,
// which package httpapi adds. A check takes the position of the longest name that is a prefix of its own.
func checkOrder() []string {
	order := []string{"loopback-serving-certificate", "etcd", "etcd-override", "etcd-readiness", "etcd-override-readiness", "kms-provider", "informer-sync"}
	for _, hook := range []string{
		"start-encryption-provider-config-automatic-reload", "start-apiserver-admission-initializer", "generic-apiserver-start-informers", "priority-and-fairness-config-consumer",
		"priority-and-fairness-filter", "max-in-flight-filter", "storage-object-count-tracker-hook",
		"start-apiextensions-informers", "start-apiextensions-controllers", "crd-informer-synced",
		"start-system-namespaces-controller", "start-kube-apiserver-coordinated-leader-election-controller",
		"peer-endpoint-reconciler-controller", "mixed-version-proxy-handler", "local-discovery-cache-sync", "peer-discovery-workers",
		"start-cluster-authentication-info-controller", "start-kube-apiserver-identity-lease-controller",
		"start-kube-apiserver-identity-lease-garbage-collector", "storage-readiness", "start-legacy-token-tracking-controller",
		"start-service-ip-repair-controllers", "rbac/bootstrap-roles", "scheduling/bootstrap-system-priority-classes",
		"priority-and-fairness-config-producer", "bootstrap-controller", "start-kubernetes-service-cidr-controller",
		"aggregator-reload-proxy-client-cert", "start-kube-aggregator-informers",
		"apiservice-status-local-available-controller", "apiservice-status-remote-available-controller",
		"apiservice-registration-controller", "apiservice-discovery-controller",
		"built-in-resources-storage-version-updater", "kube-apiserver-autoregistration",
	} {
		order = append(order, startHook+hook)
	}
	return append(order, "autoregister-completion", startHook+"apiservice-openapi-controller", startHook+"apiservice-openapiv3-controller")
}

// inOrder returns checks in kube-apiserver's order. Checks that kube-apiserver does not have are last.
func inOrder(checks ...[]healthz.HealthChecker) []healthz.HealthChecker {
	order := checkOrder()
	rank := func(check healthz.HealthChecker) int {
		best, length := len(order), 0
		for i, name := range order {
			if strings.HasPrefix(check.Name(), name) && len(name) > length {
				best, length = i, len(name)
			}
		}
		return best
	}
	all := slices.Concat(checks...)
	slices.SortStableFunc(all, func(a, b healthz.HealthChecker) int { return rank(a) - rank(b) })
	return all
}

// addHealth adds the checks of /healthz, /livez and /readyz to config.
func (s *Server) addHealth(config *httpapi.Config) {
	store, storeReady := storeChecks(&s.config.Etcd.StorageConfig, s.store, s.overrides)
	hooks := startChecks(&s.parts, s.ready, s.begun)
	if s.config.Etcd.EncryptionProviderConfigAutomaticReload {
		hooks = append(hooks, healthz.NamedCheck(startHook+"start-encryption-provider-config-automatic-reload", closed(s.begun)))
	}
	// kube-apiserver checks the expiry of its loopback certificate. Larder has no such certificate, and checks that it
	// can call itself.
	itself := []healthz.HealthChecker{healthz.NamedCheck("loopback-serving-certificate", closed(s.parts.transport.Attached()))}
	informed := []healthz.HealthChecker{healthz.NamedCheck("informer-sync", closed(s.ready.synced))}
	keys := s.parts.encryption.checks
	config.HealthChecks = inOrder(itself, store, hooks, keys)
	config.LiveChecks = inOrder(itself, store, inGrace(s.config.GenericServerRunOptions.LivezGracePeriod, hooks))
	config.ReadyChecks = inOrder(store, storeReady, informed, hooks, keys)
}

// startChecks returns a check for each part of the start, under the names of kube-apiserver's
// post-start hooks. begun is closed when the server begins to serve.
func startChecks(p *parts, ready readiness, begun <-chan struct{}) []healthz.HealthChecker {
	var checks []healthz.HealthChecker
	add := func(name string, check func(*http.Request) error) {
		checks = append(checks, healthz.NamedCheck(startHook+name, check))
	}
	add("start-apiserver-admission-initializer", closed(p.admission.Running()))
	add("generic-apiserver-start-informers", closed(p.informersStarted))
	limits := "max-in-flight-filter"
	if p.flow != nil {
		limits = "priority-and-fairness-filter"
		add("priority-and-fairness-config-consumer", closed(begun))
	}
	// Flow control estimates the cost of a list from the number of objects in the caches.
	add("storage-object-count-tracker-hook", closed(ready.loaded))
	add(limits, closed(begun))
	add("start-apiextensions-informers", closed(p.extensions.Following()))
	add("start-apiextensions-controllers", closed(p.extensions.Following()))
	add("crd-informer-synced", func(req *http.Request) error {
		if closed(ready.synced)(req) == nil {
			return nil
		}
		return closed(p.extensions.Synced())(req)
	})
	if utilfeature.DefaultFeatureGate.Enabled(features.WatchCacheInitializationPostStartHook) {
		add("storage-readiness", closed(ready.loaded))
	}
	if p.peers != nil {
		add("mixed-version-proxy-handler", closed(p.peers.synced))
		add("local-discovery-cache-sync", closed(p.peers.discovered))
		add("peer-discovery-workers", closed(begun))
	}
	for _, hook := range p.bootstrap.Hooks() {
		checks = append(checks, healthz.NamedCheck(hook.Name, func(*http.Request) error { return hook.Check() }))
	}
	return append(checks, p.aggregator.Checks()...)
}

// closed returns a check that passes once done is closed.
func closed(done <-chan struct{}) func(*http.Request) error {
	return func(*http.Request) error {
		select {
		case <-done:
			return nil
		default:
			return bootstrap.ErrNotFinished
		}
	}
}

// inGrace returns checks that pass until grace has passed.
func inGrace(grace time.Duration, checks []healthz.HealthChecker) []healthz.HealthChecker {
	if grace <= 0 {
		return checks
	}
	began := time.Now()
	var all []healthz.HealthChecker
	for _, check := range checks {
		all = append(all, healthz.NamedCheck(check.Name(), func(req *http.Request) error {
			if err := check.Check(req); err != nil && time.Since(began) >= grace {
				return err
			}
			return nil
		}))
	}
	return all
}

// storeChecks returns the checks of the stores for /healthz and for /readyz, under
// kube-apiserver's names.
func storeChecks(etcd *storagebackend.Config, store *kv.Etcd, overrides []*override) (health, ready []healthz.HealthChecker) {
	add := func(ask func(context.Context) error, name, readyName string) {
		// 0 means the default (apiserver pkg/storage/storagebackend/factory/etcd3.go).
		patience := cmp.Or(etcd.HealthcheckTimeout, storagebackend.DefaultHealthcheckTimeout)
		readyPatience := cmp.Or(etcd.ReadycheckTimeout, storagebackend.DefaultReadinessTimeout)
		sick := storestats.NewHealth(ask, patience)
		unready := sick // shared, so that a request for both reads the store once
		if readyPatience != patience {
			unready = storestats.NewHealth(ask, readyPatience)
		}
		health, ready = append(health, sick.Named(name, "etcd")), append(ready, unready.Named(readyName, "etcd-readiness"))
	}
	add(store.Health, "etcd", "etcd-readiness")
	for i, a := range overrides {
		add(a.store.Health, fmt.Sprintf("etcd-override-%d", i), fmt.Sprintf("etcd-override-readiness-%d", i))
	}
	return health, ready
}
