package statuspage

import (
	"cmp"
	"context"
	"math"
	"net/http"
	"runtime/metrics"
	"slices"
	"time"

	"github.com/larder-io/larder/httpapi/costs"
	"github.com/larder-io/larder/internal/flow"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/kv"
)

// Snapshot is the state of a server at one time.
type Snapshot struct {
	Time      time.Time `json:"time"`
	Started   time.Time `json:"started"`
	Version   string    `json:"version"`
	Refreshed float64   `json:"refreshedSeconds"` // interval between snapshots

	// Revision is the revision of the store, 0 if it is not known.
	Revision   int64 `json:"revision"`
	Goroutines int64 `json:"goroutines"`
	Streams    int   `json:"streams"` // watches and other requests that have taken over a connection

	// Total is the cost of all clients since the start, and ProcessCPUSeconds the CPU time of the process since then.
	Total             costs.Usage `json:"total"`
	ProcessCPUSeconds float64     `json:"processCPUSeconds"`

	Resources []Resource    `json:"resources"`
	Watchers  []Watchers    `json:"watchers"`
	Unlisted  int           `json:"unlistedWatches"` // watches of groups that are left out
	Flow      []flow.Level  `json:"flow"`
	Clients   *costs.Report `json:"clients"`
	Failures  []Failure     `json:"failures"` // the newest first
	Failed    int64         `json:"failed"`   // number since the start
	Checks    []Check       `json:"checks"`
	Memory    Memory        `json:"memory"`
}

// Resource describes the cache of one resource.
type Resource struct {
	Name     string `json:"name"`
	Ready    bool   `json:"ready"`
	Objects  int    `json:"objects"`
	Bytes    Bytes  `json:"bytes"`
	Revision int64  `json:"revision"`
	Lag      int64  `json:"lag"` // revisions that the store is ahead
	Watches  int64  `json:"watches"`
	Events   uint64 `json:"events"` // since the start
}

// Bytes is the bytes in a cache by kind.
type Bytes struct {
	Canonical int64 `json:"canonical"` // encodings from which all others are made
	Encodings int64 `json:"encodings"` // other encodings, which clients have requested
	Frames    int64 `json:"frames"`    // of watches
	History   int64 `json:"history"`   // objects that only past events need
}

func (b *Bytes) add(other Bytes) {
	b.Canonical += other.Canonical
	b.Encodings += other.Encodings
	b.Frames += other.Frames
	b.History += other.History
}

// Watchers are the watches of one resource by one user and agent.
type Watchers struct {
	User      string `json:"user"`
	UserAgent string `json:"userAgent"`
	Resource  string `json:"resource"`
	Watches   int    `json:"watches"`
	Busy      int    `json:"busy"` // watches that have something to send
	// Lag is the largest number of revisions by which a busy watcher is behind the cache.
	Lag int64 `json:"lag"`
}

// Check is the outcome of a health check.
type Check struct {
	Name  string `json:"name"`
	Error string `json:"error"` // "" if the check passes
}

// Memory is the memory that the process has from the operating system, by use.
type Memory struct {
	Mapped  int64          `json:"mapped"`  // by the runtime, and not returned yet
	Heap    int64          `json:"heap"`    // live objects, and objects not yet collected
	Live    int64          `json:"live"`    // live heap at the last collection
	Goal    int64          `json:"goal"`    // size of the heap at which the next collection begins
	Limit   int64          `json:"limit"`   // GOMEMLIMIT, or a part of the cgroup's; 0 if there is none
	Caches  Bytes          `json:"caches"`  // of all resources
	Lists   int64          `json:"lists"`   // compressed pieces of lists
	Budgets []BudgetStatus `json:"budgets"` // of cached data besides the present objects
}

// BudgetStatus is the limit of one resource, or of all resources that share one.
type BudgetStatus struct {
	Name  string `json:"name"`
	Limit int64  `json:"limit"` // 0 if there is none
	Used  int64  `json:"used"`
}

const (
	// patience limits the wait for the stores and for the health checks.
	patience = 2 * time.Second
	// maxGroups limits the listed groups of watches.
	maxGroups = 100
)

// gather collects a Snapshot.
func (p *Page) gather(ctx context.Context) *Snapshot {
	s := &Snapshot{Time: time.Now().UTC(), Started: p.config.Started.UTC(), Version: p.config.Version, Refreshed: interval.Seconds()}
	all := p.config.Ledger.Report(costs.Query{Window: costs.SinceStart, By: costs.ByVerb, Limit: 1})
	s.Total, s.ProcessCPUSeconds = all.Total, all.Process.CPUSeconds
	p.gatherResources(ctx, s)
	p.gatherWatchers(s)
	if s.Flow = []flow.Level{}; p.config.Flow != nil {
		s.Flow = p.config.Flow.Levels()
	}
	s.Failures, s.Failed = p.config.Failures.list()
	s.Checks = p.check(ctx)
	p.gatherMemory(s)
	return s
}

// gatherResources asks each store for its revision before it reads the caches: a cache behind that revision lags.
func (p *Page) gatherResources(ctx context.Context, s *Snapshot) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	revisions := make(map[kv.Store]int64)
	s.Resources = []Resource{}
	for _, r := range slices.Concat(p.config.Registry.Resources(), p.config.Registry.CustomResources()) {
		if r.Cache == nil {
			continue
		}
		store := r.Store()
		revision, known := revisions[store]
		if !known {
			revision, _ = store.Revision(ctx) // 0: no lag is known
			revisions[store] = revision
			s.Revision = max(s.Revision, revision)
		}
		s.Resources = append(s.Resources, resource(r, revision))
	}
	if p.config.Followed != nil {
		for _, r := range p.config.Followed() {
			s.Resources = append(s.Resources, resource(r, 0))
		}
	}
	for i := range s.Resources {
		s.Memory.Caches.add(s.Resources[i].Bytes)
	}
	slices.SortFunc(s.Resources, func(a, b Resource) int { return cmp.Compare(a.Name, b.Name) })
}

// resource describes the cache of r. revision is the store's.
func resource(r *registry.Resource, revision int64) Resource {
	hub := r.Hub.Stats()
	out := Resource{Name: r.GroupResource.String(), Ready: r.Cache.Ready(), Watches: int64(hub.Watchers), Events: uint64(hub.Events)}
	if !out.Ready {
		return out
	}
	schema, log, now := r.Cache.Schema(), r.Cache.Log(), r.Cache.Snapshot()
	out.Objects, out.Revision = now.Len(), now.Revision()
	out.Lag = max(0, revision-out.Revision)
	out.Bytes = Bytes{Canonical: now.Bytes(), Encodings: schema.EncodingBytes(), Frames: schema.FrameBytes(), History: log.Bytes()}
	return out
}

// gatherWatchers groups watches by user, agent and resource. Groups that lag come first, then large ones.
func (p *Page) gatherWatchers(s *Snapshot) {
	revisions := make(map[string]int64)
	for i := range s.Resources {
		revisions[s.Resources[i].Name] = s.Resources[i].Revision
	}
	groups := make(map[costs.Key]*Watchers)
	for w := range p.config.Streams.All() {
		s.Streams++
		if w.Key.Verb != "watch" {
			continue
		}
		g := groups[w.Key]
		if g == nil {
			g = &Watchers{User: w.Key.User, UserAgent: w.Key.UserAgent, Resource: w.Key.Resource}
			groups[w.Key] = g
		}
		g.Watches++
		if w.Busy {
			g.Busy++
			if w.Revision > 0 {
				g.Lag = max(g.Lag, revisions[g.Resource]-w.Revision)
			}
		}
	}
	s.Watchers = make([]Watchers, 0, len(groups))
	for _, g := range groups {
		s.Watchers = append(s.Watchers, *g)
	}
	slices.SortFunc(s.Watchers, func(a, b Watchers) int {
		return cmp.Or(-cmp.Compare(a.Lag, b.Lag), -cmp.Compare(a.Watches, b.Watches), cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.User, b.User), cmp.Compare(a.UserAgent, b.UserAgent))
	})
	for _, g := range s.Watchers[min(len(s.Watchers), maxGroups):] {
		s.Unlisted += g.Watches
	}
	s.Watchers = s.Watchers[:min(len(s.Watchers), maxGroups)]
}

// check runs the health checks.
func (p *Page) check(ctx context.Context) []Check {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "/readyz", nil) // cannot fail
	all := make([]Check, 0, len(p.config.Checks))
	for _, c := range p.config.Checks {
		out := Check{Name: c.Name()}
		if err := c.Check(req); err != nil {
			out.Error = err.Error()
			out.Error = out.Error[:min(len(out.Error), maxText)]
		}
		all = append(all, out)
	}
	return all
}

func (p *Page) gatherMemory(s *Snapshot) {
	m := &s.Memory
	samples := []metrics.Sample{
		{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}, {Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/gc/heap/live:bytes"}, {Name: "/gc/heap/goal:bytes"}, {Name: "/gc/gomemlimit:bytes"}, {Name: "/sched/goroutines:goroutines"},
	}
	metrics.Read(samples)
	value := func(i int) int64 { return int64(min(samples[i].Value.Uint64(), math.MaxInt64)) }
	m.Mapped, m.Heap, m.Live, m.Goal = value(0)-value(1), value(2), value(3), value(4)
	if limit := value(5); limit < math.MaxInt64 {
		m.Limit = limit
	}
	s.Goroutines = value(6)
	m.Lists = p.config.Lists()
	m.Budgets = []BudgetStatus{}
	for _, b := range p.config.Registry.Budgets() {
		out := BudgetStatus{Name: "shared", Limit: max(0, b.TotalLimit()), Used: b.Used() + b.LogBytes()}
		if !b.Resource.Empty() {
			out.Name = b.Resource.String()
		}
		m.Budgets = append(m.Budgets, out)
	}
}
