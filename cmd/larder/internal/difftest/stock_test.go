package difftest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	workers  = 48  // concurrent requests
	watchers = 256 // concurrent watches: most wait for their timeout
	tries    = 5   // how often a request is sent before a difference counts
)

// TestResponsesMatchKubeAPIServer compares the responses of Larder and kube-apiserver to the same requests.
func TestResponsesMatchKubeAPIServer(t *testing.T) {
	f := newFixture(t, "")
	if f.stock == nil {
		if *rewrite {
			t.Fatal("-rewrite needs -stock")
		}
		for _, version := range []string{"h1", "h2"} {
			t.Run(version, func(t *testing.T) {
				if testing.Short() && version == "h2" {
					t.Skip("with -short the requests are sent over HTTP/1.1 only")
				}
				f.useProtocol(t, version)
				f.replay(t, goldenFile)
			})
		}
		return
	}
	f.useProtocol(t, *protocol)
	c := newComparison(t, f)
	c.compareAll("reads", slices.Concat(fixedReads(), customReads(), aggregatedReads(), f.everyResource(t), lists()), workers, c.compareRead)
	if *rewrite {
		f.record(t, goldenFile, recordable())
	}
	c.compareAll("watches and waits", slices.Concat(watches(), customWatches(), waits()), watchers, c.compareRead)
	c.compareOpenAPIv2()
	c.comparePages()
	c.compareLiveWatches()
	c.compareAll("writes", slices.Concat(writes(), customWrites(), aggregatedWrites()), workers, c.compareDryRun)
	c.compareAll("admission", admissions(), workers, c.compareDryRun)
	c.compareFlows()
	c.compareAccess()
	c.report()
}

// useProtocol makes requests to both servers use one version of HTTP until t ends.
func (f *fixture) useProtocol(t *testing.T, version string) {
	for _, p := range []*process{f.stock, f.larder} {
		if p == nil {
			continue
		}
		before := p.client
		p.client = newClient(version)
		t.Cleanup(func() {
			p.client.CloseIdleConnections()
			p.client = before
		})
	}
}

// comparison sends requests to both servers and records their differences.
type comparison struct {
	t *testing.T
	f *fixture

	mu       sync.Mutex
	compared int
	listed   int
	unseen   map[int]bool // listed differences that did not occur
}

func newComparison(t *testing.T, f *fixture) *comparison {
	c := &comparison{t: t, f: f, unseen: make(map[int]bool)}
	for i, d := range differences {
		c.unseen[i] = !d.random
	}
	return c
}

func (c *comparison) compareAll(what string, all []request, atOnce int, send func(request) string) {
	c.t.Helper()
	began := time.Now()
	all = selected(all)
	var g errgroup.Group
	g.SetLimit(atOnce)
	for _, r := range all {
		g.Go(func() error {
			c.reportDifference(r.String(), send(r))
			return nil
		})
	}
	g.Wait()
	c.t.Logf("%s: %d requests in %v", what, len(all), time.Since(began).Round(time.Millisecond))
}

// selected drops duplicates and requests that -only excludes.
func selected(all []request) []request {
	want := regexp.MustCompile(*only)
	seen := make(map[request]bool)
	return slices.DeleteFunc(all, func(r request) bool {
		twice := seen[r]
		seen[r] = true
		return twice || !want.MatchString(r.String())
	})
}

// reportDifference reports a difference unless it is listed.
func (c *comparison) reportDifference(name, difference string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.compared++
	if difference == "" {
		return
	}
	for i, d := range differences {
		if d.request.MatchString(name) && d.difference.MatchString(difference) {
			c.unseen[i] = false
			c.listed++
			return
		}
	}
	c.t.Errorf("%s\n  %s", name, difference)
}

func (c *comparison) report() {
	c.t.Logf("%d comparisons, %d listed differences", c.compared, c.listed)
	if *only != "" {
		return
	}
	for i, d := range differences {
		if !c.unseen[i] {
			continue
		}
		c.t.Errorf("no longer differs: requests %q, difference %q (%s): remove it from the list", d.request, d.difference, d.reason)
	}
}

// sendBoth sends a request to both servers concurrently.
func (f *fixture) sendBoth(r request) (stock, larder response) {
	var wg sync.WaitGroup
	wg.Go(func() { stock = f.stock.send(r) })
	larder = f.larder.send(r)
	wg.Wait()
	return stock, larder
}

// compareRead compares a read byte for byte. If the responses differ, it sends the read again after both servers have
// caught up, because revisions change. In the last try it ignores ages in Tables, which may differ by a second.
func (c *comparison) compareRead(r request) (difference string) {
	for try := range tries {
		stock, larder := c.f.sendBoth(c.f.fillIn(r, try))
		if try == tries-1 && strings.Contains(r.Accept, "as=Table") {
			stock.body, larder.body = withoutAges(stock.body), withoutAges(larder.body)
		}
		difference = compare(stock, larder)
		if difference == "" {
			return ""
		}
		c.catchUp(r)
	}
	return difference
}

// fillIn replaces {NAME} and {life} in the path. A watch lasts longer with each try.
func (f *fixture) fillIn(r request, try int) request {
	for name, value := range f.revisions {
		r.Path = strings.ReplaceAll(r.Path, name, value)
	}
	r.Path = strings.ReplaceAll(r.Path, "{life}", fmt.Sprint(1+try))
	r.Path = fillTokens(r.Path)
	return r
}

// catchUp makes both servers' caches of the requested collection follow etcd to its newest revision, as a consistent
// list does.
func (c *comparison) catchUp(r request) {
	path, _, _ := strings.Cut(r.Path, "?")
	path = strings.Replace(path, "/watch/", "/", 1)
	c.f.sendBoth(request{Method: http.MethodGet, Path: path + "?limit=1"})
}

// compareDryRun compares a dry run. If the responses differ, it sends the request again: responses in protobuf contain
// the current revision.
func (c *comparison) compareDryRun(r request) (difference string) {
	for range tries {
		if difference = c.compareWrite(r); difference == "" {
			return ""
		}
	}
	return difference
}

// compareWrite compares a write, without values that differ between equal writes. In the request, {who} stands for the
// name of the server.
func (c *comparison) compareWrite(r request) string {
	var responses [2]response
	for i, p := range []*process{c.f.stock, c.f.larder} {
		responses[i] = p.write(r)
	}
	return compare(responses[0], responses[1])
}

// write sends a request with the server's name for {who}, and returns the response with {who} for the name.
func (p *process) write(r request) response {
	r.Path = strings.ReplaceAll(r.Path, "{who}", p.name)
	r.Body = strings.ReplaceAll(r.Body, "{who}", p.name)
	a := p.send(r)
	a.body = sortManagedFields([]byte(strings.ReplaceAll(string(normalize(a.body)), p.name, "{who}")))
	return a
}

const managedFields = `"managedFields":`

// sortManagedFields sorts the entries of managedFields in body, separately those of applies and updates. The servers
// order entries by times in seconds, which may differ between the two servers.
func sortManagedFields(body []byte) []byte {
	at := bytes.Index(body, []byte(managedFields))
	if at < 0 {
		return body
	}
	at += len(managedFields)
	var entries []json.RawMessage
	in := json.NewDecoder(bytes.NewReader(body[at:]))
	if in.Decode(&entries) != nil || len(entries) == 0 {
		return body
	}
	applied := func(entry json.RawMessage) int { return -bytes.Count(entry, []byte(`"operation":"Apply"`)) }
	slices.SortFunc(entries, func(a, b json.RawMessage) int {
		return cmp.Or(cmp.Compare(applied(a), applied(b)), bytes.Compare(a, b))
	})
	sorted, err := json.Marshal(entries)
	if err != nil {
		return body
	}
	return slices.Concat(body[:at], sorted, body[at+int(in.InputOffset()):])
}

// compareFlows compares the flows. Each flow consists of writes of one object.
func (c *comparison) compareFlows() {
	var g errgroup.Group
	for i, flow := range slices.Concat(flows(), customFlows(), aggregatedFlows()) {
		g.Go(func() error {
			for step, r := range flow {
				if len(selected([]request{r})) > 0 {
					c.reportDifference(fmt.Sprintf("flow %d.%d %s", i, step, r), c.compareWrite(r))
				}
			}
			return nil
		})
	}
	g.Wait()
}

// comparePages reads lists in small pages, each with the continue token of the other server, and compares every page.
func (c *comparison) comparePages() {
	for _, path := range []string{"/api/v1/configmaps", "/api/v1/namespaces/many/configmaps", "/apis/rbac.authorization.k8s.io/v1/clusterroles", "/api/v1/namespaces/diff/events", "/api/v1/configmaps?labelSelector=third%3D1"} {
		c.walkEncodings(path)
	}
}

func (c *comparison) walkEncodings(path string) {
	for _, accept := range []string{js, table, partials} {
		c.walk(get(with(path, "limit=17"), accept))
	}
}

var tokenText = regexp.MustCompile(`"continue":"([^"]+)"`)

func (c *comparison) walk(r request) {
	if len(selected([]request{r})) == 0 {
		return
	}
	const most = 50
	page := r
	for n := range most {
		stock, larder := c.f.sendBoth(page)
		for try := 0; try < tries && compare(stock, larder) != ""; try++ {
			c.catchUp(page)
			stock, larder = c.f.sendBoth(page)
		}
		c.reportDifference(fmt.Sprintf("page %d of %s", n, r), compare(stock, larder))
		from := [2]response{stock, larder}[n%2]
		token := tokenText.FindSubmatch(from.body)
		if token == nil {
			return
		}
		page.Path = r.Path + "&continue=" + string(token[1])
	}
	c.t.Errorf("%s: the list does not end after %d pages", r, most)
}
