package httpapi

import (
	"net/http"
	"net/http/pprof"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/klog/v2"
)

// serveHealth adds /healthz, /livez and /readyz and a path for each of their
// checks, in upstream's text format. Each list begins with ping and log.
func serveHealth(t *table, health, live, ready []healthz.HealthChecker) {
	base := []healthz.HealthChecker{healthz.PingHealthz, newLogCheck()}
	with := func(more []healthz.HealthChecker) []healthz.HealthChecker {
		return append(base[:len(base):len(base)], more...)
	}
	healthz.InstallHandler(paths{t}, with(health)...)
	healthz.InstallLivezHandler(paths{t}, with(live)...)
	healthz.InstallReadyzHandler(paths{t}, with(ready)...)
}

// logCheck fails, by not answering, when logging is blocked. Upstream's check of
// the same name keeps a goroutine for the life of the process.
type logCheck struct {
	mu      sync.Mutex
	flushed time.Time // when a flush last succeeded
}

func newLogCheck() *logCheck { return &logCheck{} }

// Name implements healthz.HealthChecker.
func (c *logCheck) Name() string { return "log" }

// Check implements healthz.HealthChecker. It flushes once a minute at most.
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

// serveProfiling adds /debug/pprof.
func serveProfiling(t *table) {
	t.handle("/debug/pprof", http.RedirectHandler("/debug/pprof/", http.StatusFound))
	t.handlePrefix("/debug/pprof/", http.HandlerFunc(pprof.Index))
	t.handle("/debug/pprof/cmdline", http.HandlerFunc(pprof.Cmdline))
	t.handle("/debug/pprof/profile", http.HandlerFunc(pprof.Profile))
	t.handle("/debug/pprof/symbol", http.HandlerFunc(pprof.Symbol))
	t.handle("/debug/pprof/trace", http.HandlerFunc(pprof.Trace))
}
