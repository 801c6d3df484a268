package httpapi

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/registry"
)

// ofConfigMaps are the labels of the resource that these tests change; ofSecrets are the labels of one that they do
// not change.
const (
	ofConfigMaps = `group="",resource="configmaps"`
	ofSecrets    = `group="",resource="secrets"`
)

// sample is a sample of a text of metrics; NaN if there is none.
func sample(text, series string) float64 {
	found := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(series) + ` (\S+)$`).FindStringSubmatch(text)
	if found == nil {
		return math.NaN()
	}
	value, err := strconv.ParseFloat(found[1], 64)
	if err != nil {
		return math.NaN()
	}
	return value
}

func (p *pair) metrics(t testing.TB) string {
	t.Helper()
	return string(p.ours.must(t, get("/metrics")).body)
}

// eventually waits until a series has a value.
func (p *pair) eventually(t testing.TB, series string, want float64) {
	t.Helper()
	proctest.Eventually(t, series, func() error {
		if got := sample(p.metrics(t), series); got != want {
			return fmt.Errorf("%v, want %v", got, want)
		}
		return nil
	})
}

// TestMetricsOfWatches checks that open watches are counted by resource, and that watches with unsent events are
// counted as such.
func TestMetricsOfWatches(t *testing.T) {
	p := newPair(t)
	p.ours.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"a"}}`))
	one, _ := p.openWatch(t, configmaps+"?watch=1&resourceVersion=1&labelSelector=x%3D1", "application/json")
	other, _ := p.openWatch(t, configmaps+"?watch=1&resourceVersion=1&labelSelector=x%3D1", "application/json")
	third, _ := p.openWatch(t, configmaps+"?watch=1&resourceVersion=1&labelSelector=x%3D2", "application/json")
	for series, want := range map[string]float64{
		"larder_watchers{" + ofConfigMaps + "}": 3, "larder_watcher_groups{" + ofConfigMaps + "}": 2,
		"larder_watchers{" + ofSecrets + "}": 0, "larder_watcher_groups{" + ofSecrets + "}": 0,
		"larder_watchers_behind{" + ofConfigMaps + "}": 0, "larder_watchers_slowest_seconds{" + ofConfigMaps + "}": 0,
	} {
		p.eventually(t, series, want)
	}
	for _, open := range []*http.Response{one, other, third} {
		open.Body.Close()
	}
	p.eventually(t, "larder_watchers{"+ofConfigMaps+"}", 0)
	p.eventually(t, "larder_watcher_groups{"+ofConfigMaps+"}", 0)

	stuck := p.dial(t)
	fmt.Fprintf(stuck, "GET %s?watch=1&resourceVersion=1 HTTP/1.1\r\nHost: h\r\n\r\n", configmaps)
	in := bufio.NewReader(stuck)
	if line, err := in.ReadString('\n'); err != nil || !strings.Contains(line, "200") {
		t.Fatalf("status line is %q, error %v, want 200", line, err)
	}
	p.ours.must(t, post(configmaps, configmap("one", "", "")))
	began, value := time.Now(), strings.Repeat("x", 900_000)
	behind, slowest := "larder_watchers_behind{"+ofConfigMaps+"}", "larder_watchers_slowest_seconds{"+ofConfigMaps+"}"
	proctest.Eventually(t, "the watch is stuck", func() error { // the kernel buffers the first bytes, and written bytes are not sent at once
		requested := time.Now()
		before := p.metrics(t)
		responded := time.Now()
		p.ours.must(t, put(configmaps+"/one", configmap("one", "", fmt.Sprint(value, time.Since(began)))))
		least := time.Since(responded).Seconds()
		after := p.metrics(t)
		most := time.Since(requested).Seconds()
		first, second := sample(before, slowest), sample(after, slowest)
		if grown := second - first; sample(before, behind) != 1 || sample(after, behind) != 1 || grown < least || grown > most {
			return fmt.Errorf("got a delay of %v s and then %v s, want an increase of %v to %v s", first, second, least, most)
		}
		if !(0 < first && second <= time.Since(began).Seconds()) {
			t.Errorf("got a delay of %v s and then %v s of a watch that is stuck for at most %v", first, second, time.Since(began))
		}
		return nil
	})
	if behind := sample(p.metrics(t), "larder_watchers_behind{"+ofSecrets+"}"); behind != 0 {
		t.Errorf("got %v delayed watches of secrets, want 0", behind)
	}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		_, _ = io.Copy(io.Discard, in) // until the connection is closed
	}()
	p.eventually(t, "larder_watchers_behind{"+ofConfigMaps+"}", 0)
	p.eventually(t, "larder_watchers_slowest_seconds{"+ofConfigMaps+"}", 0)
	stuck.Close()
	<-drained
}

// TestMetricsOfCaches checks that metrics of a cache have its resource as a label, and count its writes and reads.
func TestMetricsOfCaches(t *testing.T) {
	const size = 10_000
	p := newPair(t)
	p.ours.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"a"}}`))
	text := p.metrics(t)
	// since returns a function that returns the growth of a series.
	since := func(series string) func() float64 {
		before := sample(text, series)
		return func() float64 { return sample(text, series) - before }
	}
	bytesOf := func(of string) string { return `larder_cache_bytes{group="",of="` + of + `",resource="configmaps"}` }
	offered, ingested := since("larder_cache_offered_total{"+ofConfigMaps+"}"), since("larder_cache_ingested_total{"+ofConfigMaps+"}")
	decodes, events := since("larder_cache_decodes_total{"+ofConfigMaps+"}"), since("larder_cache_history_events{"+ofConfigMaps+"}")
	canonical, encodings := since(bytesOf("canonical")), since(bytesOf("encodings"))
	frames, history := since(bytesOf("frames")), since(bytesOf("history"))
	used := since(`larder_cache_budget_used_bytes{budget="shared",of="all"}`)
	secrets := since("larder_cache_offered_total{" + ofSecrets + "}")
	check := func(what string, got func() float64, least, most float64) {
		t.Helper()
		if value := got(); value < least || value > most || math.IsNaN(value) {
			t.Errorf("%s: %v, want %v to %v", what, value, least, most)
		}
	}

	began := time.Now()
	p.ours.must(t, post(configmaps, configmap("one", "", strings.Repeat("x", size))))
	p.eventually(t, "larder_cache_history_events{"+ofConfigMaps+"}", 1)
	recorded := time.Now()
	text = p.metrics(t)
	check("offered by a write", offered, 1, 1)
	check("ingested by a write", ingested, 0, 0)
	check("canonical bytes of an object", canonical, size, 2*size)
	check("history of an object that is there", history, 0, size)
	check("offered, of another resource", secrets, 0, 0)

	least := time.Since(recorded).Seconds()
	age := sample(p.metrics(t), "larder_cache_history_seconds{"+ofConfigMaps+"}")
	if most := time.Since(began).Seconds(); age < least || age > most {
		t.Errorf("got %v s for the age of the oldest event, want %v to %v", age, least, most)
	}

	key := "/registry/configmaps/a/one"
	p.store.PutAll(map[string][]byte{key: p.stored(t, key, "xxx", "yyy")})
	p.eventually(t, "larder_cache_history_events{"+ofConfigMaps+"}", 2)
	text = p.metrics(t)
	check("offered by another process's write", offered, 1, 1)
	check("ingested by another process's write", ingested, 1, 1)
	check("events", events, 2, 2)
	check("canonical bytes of the object again", canonical, size, 2*size)
	check("bytes that only the history needs", history, size, 2*size)

	p.ours.must(t, get(configmaps+"/one"))
	_, in := p.openWatch(t, configmaps+"?watch=1&resourceVersion=1", "application/json")
	expect(t, in, "ADDED one", "MODIFIED one")
	text = p.metrics(t)
	check("encodings made on demand", encodings, size, 4*size)
	check("frames", frames, size, 4*size)
	check("room taken", used, 2*size, 10*size)
	check("decodes for JSON", decodes, 0, 0)
	p.ours.must(t, call{method: "GET", path: configmaps, header: map[string]string{"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}})
	text = p.metrics(t)
	check("decodes for a table", decodes, 1, 1)
}

// TestMetricsOfTheCacheBudget checks the metrics of the budget: its size, its use, and the refused encodings.
func TestMetricsOfTheCacheBudget(t *testing.T) {
	const room, size, objects = 200_000, 20_000, 50
	p := newPair(t, func(c *registry.Config) { c.CacheBytes = room })
	p.ours.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"a"}}`))
	for i := range objects {
		p.ours.must(t, post(configmaps, configmap(fmt.Sprint("c", i), "", strings.Repeat("x", size))))
		p.ours.must(t, get(fmt.Sprint(configmaps, "/c", i)))
	}
	text := p.metrics(t)
	refused := sample(text, "larder_cache_refused_total{"+ofConfigMaps+"}")
	dropped := sample(text, `larder_cache_dropped_total{group="",of="encodings",resource="configmaps"}`)
	encodings := sample(text, `larder_cache_bytes{group="",of="encodings",resource="configmaps"}`)
	used := sample(text, `larder_cache_budget_used_bytes{budget="shared",of="encodings"}`)
	limit := sample(text, `larder_cache_budget_limit_bytes{budget="shared",of="all"}`)
	if limit != room || used > limit || used < encodings || encodings < room/2 {
		t.Errorf("got %v bytes used of %v, %v of them by encodings of ConfigMaps, want a limit of %d, at least half of it used by encodings", used, limit, encodings, room)
	}
	// Each object was encoded once to be read: the encoding is cached, was dropped for another, or was refused.
	if cached := math.Round(encodings / size); dropped+refused < objects-room/size || cached+dropped+refused != objects {
		t.Errorf("of %d encodings %v are cached, %v were dropped, %v refused", objects, cached, dropped, refused)
	}
	if others := sample(text, "larder_cache_refused_total{"+ofSecrets+"}"); others != 0 {
		t.Errorf("got %v refused encodings of secrets, want 0", others)
	}
}
