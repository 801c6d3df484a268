package consistency

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

var groups = []string{"a", "b", "c"}

// load is the state that clients share, and the histories that they record.
type load struct {
	cluster      *cluster
	truth        *truth
	next         atomic.Int64 // the next payload's id
	transactions atomic.Int64
	known        atomic.Int64 // the newest revision that any client knows
	compacted    *atomic.Int64
	injects      bool // the server injects faults: any watch may fail with 410

	mu       sync.Mutex
	writes   []write
	reads    []*read
	broken   []error // violations found during the run
	observed map[version]observation
}

// version identifies a version of an object. A deletion is a version, too.
type version struct {
	of       *resource
	name     string
	revision int64
}

// observation is the first response with a version: its bytes, and the replica that sent it.
type observation struct {
	digest uint64
	raw    []byte
	name   string
}

// alike checks that an object has the same bytes as in earlier responses with the same version, from any replica and in
// any kind of response: D.
func (l *load) alike(of *resource, from *replica, o object) {
	v, g := version{of, o.Metadata.Name, o.Metadata.revision()}, observation{o.digest, o.raw, from.name}
	l.mu.Lock()
	first, found := l.observed[v]
	if !found {
		l.observed[v] = g
	}
	l.mu.Unlock()
	if found && first.digest != g.digest {
		l.fail("D: %v %s@%d differs between %s and %s:\n%s\n%s", of, v.name, v.revision, first.name, g.name, first.raw, g.raw)
	}
}

func raise(to *atomic.Int64, revision int64) {
	for old := to.Load(); old < revision && !to.CompareAndSwap(old, revision); old = to.Load() {
	}
}

func (l *load) fail(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.broken = append(l.broken, fmt.Errorf(format, args...))
}

// client is a goroutine that sends requests.
type client struct {
	*load
	id     int
	random *rand.Rand
}

func (c *client) replica() *replica {
	return c.cluster.replicas[c.random.IntN(len(c.cluster.replicas))]
}

func (c *client) name(of *resource) string { return fmt.Sprintf("o%02d", c.random.IntN(of.names)) }

// resource chooses a resource: in half of the calls the first one, which has most writes.
func (c *client) resource() *resource {
	return resources[max(0, c.random.IntN(2*len(resources)-1)-len(resources)+1)]
}

func (c *client) payload() payload {
	return payload{c.next.Add(1), groups[c.random.IntN(len(groups))]}
}

// write changes one object, based on a read that may be outdated.
func (c *client) write() {
	of := c.resource()
	w := write{of: of, key: c.name(of)}
	before, _ := decode[object](c.replica().send(request{method: http.MethodGet, path: of.collection + "/" + w.key + "?resourceVersion=0"}).body)
	q := request{method: http.MethodPut, path: of.collection + "/" + w.key}
	switch dice := c.random.IntN(100); {
	case before.Kind != of.kind:
		w.payload = c.payload()
		q.method, q.path, q.body = http.MethodPost, of.collection, of.json(w.payload, w.key, "")
	case dice < 20:
		w.deletes = before.Metadata.revision()
		q.method = http.MethodDelete
		q.body = fmt.Sprintf(`{"kind":"DeleteOptions","apiVersion":"v1","preconditions":{"resourceVersion":"%d"}}`, w.deletes)
	case dice < 60: // the server reads, merges, and retries after conflicts
		w.payload = c.payload()
		q.method, q.kind, q.body = http.MethodPatch, "application/merge-patch+json", of.patch(w.payload)
	default:
		w.payload = c.payload()
		q.body = of.json(w.payload, w.key, before.Metadata.ResourceVersion)
	}
	c.send(w, q)
}

// send sends a write and records the outcome.
func (c *client) send(w write, q request) int64 {
	replica := c.replica()
	a := replica.send(q)
	w.note = fmt.Sprintf("%s: %s %s: %d %v %.300s", replica.name, q.method, q.path, a.code, a.err, a.body)
	switch a.code {
	case http.StatusOK, http.StatusCreated:
		w.outcome = acknowledged
		if after, err := decode[object](a.body); err == nil && w.payload.id != 0 {
			w.revision = after.Metadata.revision()
			raise(&c.known, w.revision)
		}
	case http.StatusBadRequest, http.StatusForbidden, http.StatusNotFound, http.StatusConflict, http.StatusUnprocessableEntity:
		w.outcome = rejected
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes = append(c.writes, w)
	return w.revision
}

// read makes one read of a random kind.
func (c *client) read() {
	r := &read{of: c.resource(), client: c.id, known: c.known.Load()}
	if c.random.IntN(3) == 0 {
		r.filter.group = groups[c.random.IntN(len(groups))]
	} else if c.random.IntN(6) == 0 {
		r.filter.name = c.name(r.of)
	}
	query := "?"
	switch c.random.IntN(8) {
	case 0, 1:
		r.filter = filter{}
		c.get(r)
		return
	case 2, 3:
		r.what, r.consistent = "list", true
	case 4:
		r.what, query = "list RV=0", "?resourceVersion=0"
	case 5:
		r.least = r.known
		r.what, query = "list RV=N", fmt.Sprintf("?resourceVersion=%d", r.known)
	case 6:
		r.exact = max(1, r.known-c.random.Int64N(60))
		r.what, query = "list exact", fmt.Sprintf("?resourceVersion=%d&resourceVersionMatch=Exact", r.exact)
		if c.random.IntN(2) == 0 {
			query += fmt.Sprintf("&limit=%d", 3+c.random.IntN(9))
		}
	case 7:
		r.what, r.consistent = "list pages", true
		query = fmt.Sprintf("?limit=%d", 3+c.random.IntN(9))
	}
	c.list(r, query+r.filter.query())
}

func (c *client) get(r *read) {
	r.name, r.what, r.consistent = c.name(r.of), "get ", c.random.IntN(4) != 0
	q := request{method: http.MethodGet, path: r.of.collection + "/" + r.name}
	if !r.consistent {
		q.path += "?resourceVersion=0"
	}
	replica := c.replica()
	r.from = []string{replica.name}
	a := replica.send(q)
	if a.code == http.StatusOK {
		o, err := decode[object](a.body)
		if err != nil {
			c.fail("R: %v: %v", r, err)
			return
		}
		r.revision = o.Metadata.revision()
		c.take(r, replica, o)
	} else if a.code != http.StatusNotFound {
		return
	}
	c.keep(r)
}

func (c *client) keep(r *read) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reads = append(c.reads, r)
}

// take adds an object of a response to a read.
func (c *client) take(r *read, from *replica, o object) {
	c.alike(r.of, from, o)
	p, ok := readPayload(o.text())
	if !ok || o.Metadata.Labels["g"] != p.group {
		c.fail("R: %v has %+v", r, o)
	}
	r.objects = append(r.objects, found{o.Metadata.Name, o.Metadata.revision(), p})
}

// list reads all pages, each from a random replica.
func (c *client) list(r *read, query string) {
	for next := ""; ; {
		q := request{method: http.MethodGet, path: r.of.collection + query}
		if next != "" {
			q.path = fmt.Sprintf("%s?limit=%d&continue=%s%s", r.of.collection, 3+c.random.IntN(9), next, r.filter.query())
		}
		replica := c.replica()
		a := replica.send(q)
		if a.code == http.StatusGone && max(r.revision, r.exact) >= c.compacted.Load() {
			c.fail("R: %v: %s returned 410, but no revision from %d on was compacted: %s", r, replica.name, c.compacted.Load(), a.body)
		}
		if a.code != http.StatusOK {
			return
		}
		page, err := decode[list](a.body)
		if err != nil {
			c.fail("R: %v: %v", r, err)
			return
		}
		if next != "" && page.Metadata.revision() != r.revision {
			c.fail("R: %v continues at %d", r, page.Metadata.revision())
		}
		r.revision = page.Metadata.revision()
		for _, o := range page.Items {
			c.take(r, replica, o)
		}
		remaining := -1
		if page.Metadata.Remaining != nil {
			remaining = *page.Metadata.Remaining
		}
		r.from, r.splits = append(r.from, replica.name), r.splits || replica.stock
		r.sizes, r.remaining = append(r.sizes, len(page.Items)), append(r.remaining, remaining)
		if next = page.Metadata.Continue; next == "" {
			c.keep(r)
			return
		}
	}
}

// run repeats do until the context ends.
func (c *client) run(ctx context.Context, do func(*client), every time.Duration) {
	for pause(ctx, every) {
		do(c)
	}
}
