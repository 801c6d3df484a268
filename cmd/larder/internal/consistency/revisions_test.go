package consistency

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/larder-io/larder/cmd/larder/internal/server/servertest"
	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv/kvtest"
)

// paced is a resource that changes at its own rate.
type paced struct {
	name, path string // path for all namespaces, or for a cluster-scoped resource
	spaced     string // path for namespace default, "" if cluster-scoped
	body       string // of an object, with a verb for its name
	every      time.Duration
	prefix     string // of its keys in etcd if writes bypass the server, to be fast

	returned atomic.Int64 // the highest resourceVersion that any client received
}

func newPaced() []*paced {
	return []*paced{
		{
			name: "configmaps", path: "/api/v1/configmaps", spaced: collection, every: time.Millisecond, prefix: prefix,
			body: `{"metadata":{"name":%q,"labels":{"g":"a"}}}`,
		},
		{
			name: "secrets", path: "/api/v1/secrets", spaced: "/api/v1/namespaces/default/secrets", every: 30 * time.Millisecond,
			body: `{"metadata":{"name":%q,"labels":{"g":"a"}}}`,
		},
		{
			name: "events", path: "/api/v1/events", spaced: "/api/v1/namespaces/default/events", every: 100 * time.Millisecond,
			body: `{"metadata":{"name":%q,"labels":{"g":"a"}},"involvedObject":{"namespace":"default"}}`,
		},
		{
			name: "leases", path: "/apis/coordination.k8s.io/v1/leases", spaced: "/apis/coordination.k8s.io/v1/namespaces/default/leases",
			every: 700 * time.Millisecond, body: `{"metadata":{"name":%q,"labels":{"g":"a"}}}`,
		},
		{
			name: "priorityclasses", path: "/apis/scheduling.k8s.io/v1/priorityclasses", every: time.Hour,
			body: `{"metadata":{"name":%q,"labels":{"g":"a"}},"value":1}`,
		},
	}
}

// revisionTest is a process whose lists and watches of several resources are checked.
type revisionTest struct {
	*replica
	resources []*paced
	start     time.Time

	// compacting is locked to compact etcd; a client that reads the pages of a list shares it.
	compacting sync.RWMutex

	mu        sync.Mutex
	revisions []listedRevision
	kinds     map[string]int
	broken    []error
}

func (l *revisionTest) fail(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.broken = append(l.broken, fmt.Errorf(format, args...))
}

func (l *revisionTest) keep(of *paced, given listedRevision) {
	raise(&of.returned, given.revision)
	given.resource, given.ended = of.name, time.Since(l.start)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.revisions = append(l.revisions, given)
	l.kinds[given.what]++
}

func (l *revisionTest) begin(what string) listedRevision {
	return listedRevision{what: what, began: time.Since(l.start)}
}

// TestResourceVersionsNeverGoBack checks the resourceVersions that one process sends in lists, watches and objects of
// resources with very different rates of change, in all formats, while etcd is compacted: B.
func TestResourceVersionsNeverGoBack(t *testing.T) {
	c := newCluster(t, 1, 0)
	c.addReplica(t, "larder0", servertest.Config{})
	l := &revisionTest{replica: c.replicas[0], resources: newPaced(), start: time.Now(), kinds: make(map[string]int)}
	for _, r := range l.resources {
		for i := range 30 {
			l.put(t, r, fmt.Sprintf("l%02d", i))
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	for i, r := range l.resources {
		all.Go(func() { l.write(ctx, c, r) })
		for reader := range 2 {
			random := rand.New(rand.NewPCG(uint64(i), uint64(reader)))
			all.Go(func() {
				for ctx.Err() == nil {
					l.read(ctx, r, random)
				}
			})
		}
		random := rand.New(rand.NewPCG(uint64(i), 100))
		all.Go(func() {
			for ctx.Err() == nil {
				l.watch(ctx, r, random)
			}
		})
	}
	all.Go(func() { l.compact(ctx, c) })
	l.awaitKinds(t)
	cancel()
	all.Wait()
	t.Logf("%d resourceVersions: %v", len(l.revisions), l.kinds)
	if broken := slices.Concat(l.broken, checkRevisions(l.revisions)); len(broken) > 0 {
		t.Error(first(broken))
	}
}

// awaitKinds waits until the clients have enough responses of each kind.
func (l *revisionTest) awaitKinds(t *testing.T) {
	want := []string{"get", "list RV=0", "list RV=N", "list consistent", "list exact", "pages", "more pages", "initial events", "bookmark"}
	proctest.Eventually(t, "every kind has returned enough revisions", func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, kind := range want {
			if l.kinds[kind] < 2*len(l.resources) {
				return fmt.Errorf("%d of %s", l.kinds[kind], kind)
			}
		}
		if len(l.revisions) < 10*least {
			return fmt.Errorf("%d resourceVersions", len(l.revisions))
		}
		return nil
	})
}

// put creates an object.
func (l *revisionTest) put(t *testing.T, r *paced, name string) {
	t.Helper()
	path := r.path
	if r.spaced != "" {
		path = r.spaced
	}
	a := l.send(request{method: http.MethodPost, path: path, body: fmt.Sprintf(r.body, name)})
	if a.code != http.StatusCreated {
		t.Fatalf("create %s %s: %d %v %s", r.name, name, a.code, a.err, a.body)
	}
}

// write changes a resource at its rate.
func (l *revisionTest) write(ctx context.Context, c *cluster, r *paced) {
	var last int64 // revision of the last write that bypassed the server
	for n := int64(1); pause(ctx, r.every); n++ {
		if r.prefix != "" {
			change := kvtest.Change{Key: r.prefix + "fast", IfRevision: last, Value: payload{n, "a"}.stored("fast")}
			if at, done, err := c.outsider.Transact(ctx, []kvtest.Change{change}); done && err == nil {
				last = at
			}
			continue
		}
		path := r.path
		if r.spaced != "" {
			path = r.spaced
		}
		l.send(request{
			method: http.MethodPatch, path: path + "/l00", kind: "application/merge-patch+json",
			body: fmt.Sprintf(`{"metadata":{"annotations":{"n":"%d"}}}`, n),
		})
	}
}

// compact compacts all revisions that no later response may have.
func (l *revisionTest) compact(ctx context.Context, c *cluster) {
	for pause(ctx, 200*time.Millisecond) {
		l.compacting.Lock()
		to := l.resources[0].returned.Load()
		for _, r := range l.resources {
			to = min(to, r.returned.Load())
		}
		c.outsider.Compact(ctx, to)
		l.compacting.Unlock()
	}
}

// forms are the media types of lists.
var forms = []string{
	"application/json",
	"application/vnd.kubernetes.protobuf",
	"application/json;as=Table;v=v1;g=meta.k8s.io",
	"application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
	"application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
}

// read reads a list of a random kind, or an object.
func (l *revisionTest) read(ctx context.Context, r *paced, random *rand.Rand) {
	path := r.path
	if r.spaced != "" && random.IntN(2) == 0 {
		path = r.spaced
	}
	form := forms[random.IntN(len(forms))]
	query := []string{"", "&labelSelector=g%3Da", "&fieldSelector=metadata.name%3Dl01", ""}[random.IntN(4)]
	requested := r.returned.Load()
	switch random.IntN(8) {
	case 0, 1, 2:
		l.list(ctx, r, l.begin("list RV=0"), form, path+"?resourceVersion=0"+query)
	case 3:
		given := l.begin("list RV=N")
		given.requested = requested
		match := []string{"", "&resourceVersionMatch=NotOlderThan", "&resourceVersionMatch=NotOlderThan&limit=5"}[random.IntN(3)]
		l.list(ctx, r, given, form, fmt.Sprintf("%s?resourceVersion=%d%s%s", path, requested, match, query))
	case 4:
		l.list(ctx, r, l.begin("list consistent"), form, path+"?"+query)
	case 5:
		l.compacting.RLock()
		defer l.compacting.RUnlock()
		given := l.begin("list exact")
		given.requested, given.exact = r.returned.Load(), true
		if !strings.Contains(query, "field") { // the server would read a list of one object from etcd
			l.list(ctx, r, given, form, fmt.Sprintf("%s?resourceVersion=%d&resourceVersionMatch=Exact%s", path, given.requested, query))
		}
	case 6:
		l.pages(ctx, r, random, form, path, strings.ReplaceAll(query, "&fieldSelector=metadata.name%3Dl01", ""))
	case 7:
		l.get(r, random, requested)
	}
}

// list reads a list and returns its revision and continue token.
func (l *revisionTest) list(ctx context.Context, r *paced, given listedRevision, form, path string) (revision int64, next string) {
	a := l.send(request{method: http.MethodGet, path: path, accept: form})
	if a.code != http.StatusOK {
		if ctx.Err() == nil && a.code != 0 && a.code != http.StatusGatewayTimeout && a.code != http.StatusTooManyRequests {
			l.fail("B: %v, %s: %d %s", given, path, a.code, a.body)
		}
		return 0, ""
	}
	m, err := metaOf(form, a.body)
	if err != nil {
		l.fail("B: %s: %w", path, err)
		return 0, ""
	}
	given.revision = m.revision()
	l.keep(r, given)
	return given.revision, m.Continue
}

// metaOf reads the metadata of a list of any kind.
func metaOf(form string, body []byte) (meta, error) {
	if !strings.Contains(form, "protobuf") {
		page, err := decode[list](body)
		return page.Metadata, err
	}
	raw, ok := field(body[min(4, len(body)):], 2) // the message in the envelope
	head, found := field(raw, 1)
	if !ok || !found {
		return meta{}, fmt.Errorf("no list in %.200q", body)
	}
	revision, _ := field(head, 2)
	next, _ := field(head, 3)
	return meta{ResourceVersion: string(revision), Continue: string(next)}, nil
}

// field returns the first value of a bytes field of a message.
func field(message []byte, number protowire.Number) ([]byte, bool) {
	for len(message) > 0 {
		at, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return nil, false
		}
		message = message[n:]
		if at == number && kind == protowire.BytesType {
			value, n := protowire.ConsumeBytes(message)
			return value, n >= 0
		}
		if n = protowire.ConsumeFieldValue(at, kind, message); n < 0 {
			return nil, false
		}
		message = message[n:]
	}
	return nil, false
}

// pages reads all pages of a list. No page may be of a compacted revision.
func (l *revisionTest) pages(ctx context.Context, r *paced, random *rand.Rand, form, path, query string) {
	l.compacting.RLock()
	defer l.compacting.RUnlock()
	given, version := l.begin("pages"), ""
	if random.IntN(2) == 0 {
		given.requested = r.returned.Load()
		version = fmt.Sprintf("&resourceVersion=%d&resourceVersionMatch=NotOlderThan", given.requested)
	}
	revision, next := l.list(ctx, r, given, form, fmt.Sprintf("%s?limit=7%s%s", path, query, version))
	for next != "" && ctx.Err() == nil {
		given := l.begin("more pages")
		given.requested, given.exact = revision, true
		_, next = l.list(ctx, r, given, form, fmt.Sprintf("%s?limit=7%s&continue=%s", path, query, next))
	}
}

// get reads an object, whose revision shows how far the process has come.
func (l *revisionTest) get(r *paced, random *rand.Rand, requested int64) {
	path := r.path
	if r.spaced != "" {
		path = r.spaced
	}
	given := l.begin("get")
	given.exact = true // the object's own revision, which only later ones must not precede
	query := []string{"", "?resourceVersion=0", fmt.Sprintf("?resourceVersion=%d", requested)}[random.IntN(3)]
	a := l.send(request{method: http.MethodGet, path: path + "/l00" + query})
	if o, err := decode[object](a.body); a.code == http.StatusOK && err == nil {
		given.revision, given.requested = o.Metadata.revision(), o.Metadata.revision()
		l.keep(r, given)
	}
}

// watch reads a watch until its timeout, which is short.
func (l *revisionTest) watch(ctx context.Context, r *paced, random *rand.Rand) {
	began := l.begin("")
	query, requested := "", int64(0)
	switch random.IntN(4) {
	case 0:
		query = "&resourceVersion=0"
	case 1:
		requested = r.returned.Load()
		query = fmt.Sprintf("&resourceVersion=%d", requested)
	}
	path := r.path + "?watch=1&allowWatchBookmarks=true&timeoutSeconds=3" + query
	if query == "" || random.IntN(3) > 0 {
		path += "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, l.url+path, nil)
	if err != nil {
		l.fail("B: %w", err)
		return
	}
	req.Header.Set("Accept", []string{forms[0], "application/json;as=Table;v=v1;g=meta.k8s.io", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"}[random.IntN(3)])
	resp, err := l.client.Do(req)
	if err != nil {
		return // the test has ended
	}
	defer resp.Body.Close()
	l.follow(r, resp.Body, began, requested)
}

// follow records a watch's bookmarks.
func (l *revisionTest) follow(r *paced, body io.Reader, given listedRevision, requested int64) {
	for frames := json.NewDecoder(body); ; {
		var frame struct {
			Type   string
			Object struct {
				object
				Rows []struct{ Object object }
			}
		}
		if frames.Decode(&frame) != nil {
			return
		}
		o := frame.Object.object
		if len(frame.Object.Rows) > 0 { // a Table
			o = frame.Object.Rows[0].Object
		}
		switch {
		case frame.Type == "ERROR":
			if o.Code != http.StatusGone {
				l.fail("B: %v: %+v", given, o)
			}
			return
		case frame.Type != "BOOKMARK":
			continue
		case o.Metadata.Annotations["k8s.io/initial-events-end"] == "true":
			given.what = "initial events"
		default:
			given.what = "bookmark"
		}
		given.revision, given.requested = o.Metadata.revision(), requested
		if given.revision == 0 {
			given.revision = frame.Object.Metadata.revision()
		}
		l.keep(r, given)
		requested = given.revision // the next bookmark must not be lower
	}
}
