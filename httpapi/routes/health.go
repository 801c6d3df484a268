package routes

import (
	"net/http"
	"net/http/pprof"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/klog/v2"
)

// InstallHealth registers /healthz, /livez and /readyz, and a path for each of their checks, in
// upstream's text format. Each list begins with ping and log.
func InstallHealth(t *Table, health, live, ready []healthz.HealthChecker) {
	base := []healthz.HealthChecker{healthz.PingHealthz, new(logCheck)}
	with := func(more []healthz.HealthChecker) []healthz.HealthChecker {
		return append(base[:len(base):len(base)], more...)
	}
	healthz.InstallHandler(t, with(health)...)
	healthz.InstallLivezHandler(t, with(live)...)
	healthz.InstallReadyzHandler(t, with(ready)...)
}

// logCheck blocks while logging is blocked, so that the probe times out. Upstream's check of the same
// name runs a goroutine for the life of the process.
type logCheck struct {
	mu      sync.Mutex
	flushed time.Time // when a flush last succeeded
}

func (c *logCheck) Name() string { return "log" }

// Check implements healthz.HealthChecker. It flushes the log at most once a minute.
func (c *logCheck) Check(*http.Request) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.flushed) < time.Minute {
		return nil
	}
	klog.Flush()
	c.flushed = time.Now()
	return nil
}

// InstallProfiling registers /debug/pprof without the command line, which may contain secrets;
// kube-apiserver has removed it, too.
func InstallProfiling(t *Table) {
	t.Handle("/debug/pprof", http.RedirectHandler("/debug/pprof/", http.StatusFound))
	t.HandlePrefix("/debug/pprof/", http.HandlerFunc(pprof.Index))
	t.Handle("/debug/pprof/profile", http.HandlerFunc(pprof.Profile))
	t.Handle("/debug/pprof/symbol", http.HandlerFunc(pprof.Symbol))
	t.Handle("/debug/pprof/trace", http.HandlerFunc(pprof.Trace))
}
