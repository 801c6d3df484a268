package inject

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/klog/v2"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/httpapi/faults"
)

// Limits of the faults that a server keeps. docs/faults.md states those that users may exceed.
const (
	maxRules     = 128
	maxRuleSize  = 8 << 10
	maxHeldBytes = 256 << 20 // bytes of the events that all watches hold
	maxInjected  = 10_000
	maxCounted   = 1 << 18 // kinds of requests that the seeds count; further kinds meet no faults
	maxTextBytes = 512     // of each part of a request
)

// Faults holds the rules of a server. All methods may be called from any goroutine.
type Faults struct {
	hasRules atomic.Bool // there are rules
	limit    int         // maxHeldBytes, less in tests

	mu       sync.Mutex
	rules    []*rule           // guarded by mu: in the order in which they were set
	watches  []*Watch          // guarded by mu: in the order in which they were opened
	held     int               // guarded by mu: the sum over watches of Watch.bytes
	counted  int               // guarded by mu: the sum over rules of the lengths of rule.ordinals
	injected []faults.Injected // guarded by mu
}

// rule is a Rule and its counts. Faults.mu guards it.
type rule struct {
	faults.Rule
	matched  int              // requests
	ordinals map[uint64]int   // of a seed: how often requests came, by their hash
	floors   map[string]int64 // of a seed: the revision of the first read of a resource
}

// New returns Faults with a rule for seed, unless that is 0. The rule leaves kubectl alone.
func New(seed uint64) *Faults {
	f := &Faults{limit: maxHeldBytes}
	if seed != 0 {
		f.set(faults.Rule{Name: "seed", Seed: seed, Match: faults.Match{UserAgent: "!kubectl*"}})
	}
	return f
}

// Idle reports whether there are no rules.
func (f *Faults) Idle() bool { return !f.hasRules.Load() }

// set sets a valid rule, also for the open watches. It reports false if there are too many rules.
func (f *Faults) set(r faults.Rule) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	added := &rule{Rule: r, ordinals: make(map[uint64]int), floors: make(map[string]int64)}
	var gone *rule
	if i := f.indexLocked(r.Name); i >= 0 {
		gone, f.rules[i] = f.rules[i], added
		f.counted -= len(gone.ordinals)
	} else if len(f.rules) == maxRules {
		return false
	} else {
		f.rules = append(f.rules, added)
	}
	f.hasRules.Store(true)
	for _, w := range f.watches {
		w.detachLocked(gone)
		w.attachLocked(added)
		w.reapplyLocked()
	}
	return true
}

// indexLocked returns the index of the rule of that name; -1 if there is none.
func (f *Faults) indexLocked(name string) int {
	return slices.IndexFunc(f.rules, func(r *rule) bool { return r.Name == name })
}

// deleteLocked deletes the rule of that name and reports whether it existed. Requests and events that the rule held
// continue.
func (f *Faults) deleteLocked(name string) bool {
	i := f.indexLocked(name)
	if i < 0 {
		return false
	}
	gone := f.rules[i]
	f.rules = slices.Delete(f.rules, i, i+1)
	f.counted -= len(gone.ordinals)
	f.hasRules.Store(len(f.rules) > 0)
	for _, w := range f.watches {
		w.detachLocked(gone)
		w.reapplyLocked()
	}
	return true
}

// clear deletes all rules and the list of injected faults.
func (f *Faults) clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.rules) > 0 {
		f.deleteLocked(f.rules[0].Name)
	}
	f.injected = nil
}

// letThrough releases the next n events of each watch that the rule holds; if n is 0, all that it holds now. It
// reports whether there is such a rule.
func (f *Faults) letThrough(name string, n int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.watches {
		if h := w.hold; h != nil && h.Name == name {
			if n > 0 {
				w.credit += n
			} else {
				w.releaseLocked()
			}
			w.wake()
		}
	}
	return f.indexLocked(name) >= 0
}

// state lists everything.
func (f *Faults) state() faults.State {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := faults.State{Rules: []faults.Rule{}, Watches: []faults.Watch{}, Injected: slices.Clone(f.injected)}
	for _, r := range f.rules {
		s.Rules = append(s.Rules, r.Rule)
	}
	for _, w := range f.watches {
		s.Watches = append(s.Watches, w.stateLocked())
	}
	return s
}

// noteLocked lists and logs an injected fault.
func (f *Faults) noteLocked(r *rule, q faults.Request, ordinal int, fault string) {
	if len(f.injected) == maxInjected {
		f.injected = slices.Delete(f.injected, 0, maxInjected/10)
	}
	i := faults.Injected{Rule: r.Name, Seed: r.Seed, Request: q, Ordinal: ordinal, Fault: fault}
	f.injected = append(f.injected, i)
	klog.InfoS("Fault injected", "fault", i.String())
}

// RequestFaults is the faults of one request. Nil means none. It belongs to the goroutine of the request.
type RequestFaults struct {
	faults             *Faults
	request            faults.Request
	refuse, retryAfter int
	lose               *effect
	stale              *effect
	seed               *rule          // decides about a read
	draws              map[*rule]draw // of seeds, for a watch
}

// effect is the action of a rule, or of a draw, that may take effect later.
type effect struct {
	rule    *rule
	action  faults.Rule
	ordinal int
}

// Plan decides what happens to a request.
func (f *Faults) Plan(q faults.Request) *RequestFaults {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := &RequestFaults{faults: f, request: q}
	for _, r := range f.rules {
		if !r.Match.Selects(&q) {
			continue
		}
		if r.Seed != 0 {
			if d, ok := f.decideLocked(r, q); ok {
				p.applyDrawLocked(r, d)
			}
			continue
		}
		if appliesTo(&r.Rule, q.Verb) {
			if ordinal, ok := r.countLocked(); ok {
				p.applyLocked(effect{r, r.Rule, ordinal})
			}
		}
	}
	return p
}

// countLocked counts a matching request and reports whether r concerns it.
func (r *rule) countLocked() (ordinal int, concerned bool) {
	ordinal = r.matched
	r.matched++
	return ordinal, ordinal >= r.Skip && (r.Times == 0 || ordinal < r.Skip+r.Times)
}

// appliesTo reports whether the action of r applies to requests with that verb. Hold, Delay and End are not
// considered.
func appliesTo(r *faults.Rule, verb string) bool {
	switch {
	case r.Stale != 0, r.StaleAt != 0:
		return isRead(verb)
	case r.Refuse == 409:
		return verb == "update" || verb == "patch"
	case r.Refuse == 504:
		return verb != "watch"
	case r.Lose != "":
		return !isRead(verb)
	default:
		return r.Refuse != 0
	}
}

// prefix returns the prefix of the keys in the request's namespace.
func (p *RequestFaults) prefix() string {
	if p.request.Namespace == "" || strings.HasPrefix(p.request.Resource+"/", "namespaces/") {
		return ""
	}
	return p.request.Namespace + "/"
}

func isRead(verb string) bool { return verb == "get" || verb == "list" || verb == "watch" }

// applyLocked makes e part of the plan, unless an earlier rule decides the same.
func (p *RequestFaults) applyLocked(e effect) {
	switch {
	case e.action.Refuse != 0 && p.refuse == 0:
		p.refuse, p.retryAfter = e.action.Refuse, max(e.action.RetryAfter, 1)
		p.faults.noteLocked(e.rule, p.request, e.ordinal, "refused with "+strconv.Itoa(p.refuse))
	case e.action.Lose != "" && p.lose == nil:
		p.lose = &e
	case (e.action.Stale != 0 || e.action.StaleAt != 0) && p.stale == nil:
		p.stale = &e
	}
}

// Refusal returns the status with which the request is refused, 0 if it is not, and the seconds after which
// its client may retry.
func (p *RequestFaults) Refusal() (status, retryAfter int) { return p.refuse, p.retryAfter }

// Lost returns how the response of a write is lost: "" or a value of faults.Rule.Lose. The caller does so.
func (p *RequestFaults) Lost(status int) string {
	if p.lose == nil {
		return ""
	}
	p.faults.mu.Lock()
	defer p.faults.mu.Unlock()
	lost := p.lose.action.Lose
	p.faults.noteLocked(p.lose.rule, p.request, p.lose.ordinal, fmt.Sprintf("response %d lost by %s", status, lost))
	return lost
}

// Seeded reports whether a seed decides about a read. The cache must have caught up with the store then:
// how far it is behind would be chance.
func (p *RequestFaults) Seeded() bool { return p.seed != nil }

// Past returns the revision at which a read of c that accepts any revision from resourceVersion on is
// served; 0 if it is served as usual.
func (p *RequestFaults) Past(c *cache.Cache, resourceVersion string) int64 {
	if p.stale == nil && p.seed == nil {
		return 0
	}
	least, err := strconv.ParseInt(resourceVersion, 10, 64)
	if err != nil || !c.Ready() {
		return 0
	}
	newest := c.Snapshot().Revision()
	at := int64(0)
	if p.stale != nil {
		if at = p.stale.action.StaleAt; at == 0 {
			at = c.RevisionBefore(p.stale.action.Stale, p.prefix()) // may take long: without the lock
		}
	}
	p.faults.mu.Lock()
	defer p.faults.mu.Unlock()
	// Another run of a seed must not meet other states: those from before its first read.
	floor := int64(0)
	if p.seed != nil {
		if floor = p.seed.floors[p.request.Resource]; floor == 0 {
			floor = newest
			p.seed.floors[p.request.Resource] = floor
		}
	}
	if p.stale == nil {
		return 0
	}
	if at = max(at, floor, least, c.Log().Oldest()); at >= newest {
		return 0
	}
	text := "served as by a replica at resourceVersion " + strconv.FormatInt(at, 10)
	if n := p.stale.action.Stale; n > 0 {
		text = fmt.Sprintf("served as by a replica %d changes behind", n)
	}
	p.faults.noteLocked(p.stale.rule, p.request, p.stale.ordinal, text)
	return at
}

// RequestOf returns the request as rules see it: long texts are cut off.
func RequestOf(userAgent, user, verb, group, resource, subresource, namespace, name string) faults.Request {
	kind := strings.TrimSuffix(resource+"."+group, ".")
	if subresource != "" {
		kind += "/" + subresource
	}
	q := faults.Request{UserAgent: userAgent, User: user, Verb: verb, Resource: kind, Namespace: namespace, Name: name}
	for _, text := range []*string{&q.UserAgent, &q.User, &q.Resource, &q.Namespace, &q.Name} {
		if len(*text) > maxTextBytes {
			*text = strings.Clone((*text)[:maxTextBytes])
		}
	}
	return q
}
