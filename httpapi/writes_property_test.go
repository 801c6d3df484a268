package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/rand"
	"pgregory.net/rapid"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv"
)

// reduceRapidChecks reduces the checks of property tests to a third until t ends, in builds with the race detector.
// These look for races, and builds without it for differences.
func reduceRapidChecks(t testing.TB) {
	checks := flag.Lookup("rapid.checks")
	if !proctest.RaceDetector || checks == nil || checks.Value.String() != checks.DefValue {
		return
	}
	if err := flag.Set("rapid.checks", "33"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = flag.Set("rapid.checks", checks.DefValue) })
}

// TestWritesMatchUpstream sends random sequences of requests to Larder and to upstream's handlers behind upstream's
// filters, each with its own store. It compares everything visible: responses, calls of admission, audit records, spans,
// metrics and stored objects.
func TestWritesMatchUpstream(t *testing.T) {
	reduceRapidChecks(t)
	w := &writesPair{t: t, codes: make(map[string]int), ours: newWritesLarder(t), theirs: newWritesUpstream(t)}
	rapid.Check(t, func(t *rapid.T) {
		w.sequences++
		namespace := fmt.Sprintf("n%d", w.sequences)
		draws := requests{T: t, namespace: namespace}
		all := writtenKinds()
		draws.kinds = append(draws.kinds, pick(draws, "kind of the sequence", all...))
		if draws.one(4, "second kind") {
			draws.kinds = append(draws.kinds, pick(draws, "other kind", all...))
		}
		var sequence []*writeRequest
		for i := range rapid.IntRange(2, 14).Draw(t, "requests") {
			sequence = append(sequence, draws.draw(i == 0))
		}
		w.compare(t, namespace, sequence)
	})
	t.Logf("responses: %v", w.codes)
}

// writesPair are two sides whose writes are compared.
type writesPair struct {
	t            testing.TB // for work outside rapid
	ours, theirs *writesSide
	sequences    int
	codes        map[string]int // how many responses there were, by method and code
}

// compare sends a sequence to both sides. Entries of managedFields are ordered by their seconds. So if the sides
// differ and a second ended during the sequence, compare sends it again, up to ten times, to other namespaces.
func (w *writesPair) compare(t rapid.TB, namespace string, sequence []*writeRequest) {
	diff, straddled := w.run(namespace, sequence)
	for i := 0; diff != "" && straddled && i < 10; i++ {
		next := fmt.Sprintf("%s-%d", namespace, i)
		moved := make([]*writeRequest, len(sequence))
		for j, r := range sequence {
			moved[j] = r.in(namespace, next)
		}
		diff, straddled = w.run(next, moved)
	}
	switch {
	case diff == "":
	case straddled:
		t.Logf("not compared: %d requests never fit into one second", len(sequence))
	default:
		t.Fatalf("%s", diff)
	}
}

// in is the request in another namespace.
func (r *writeRequest) in(old, namespace string) *writeRequest {
	moved := *r
	word := regexp.MustCompile(`\b` + old + `\b`)
	moved.namespace, moved.path = namespace, word.ReplaceAllString(r.path, namespace)
	if r.tree != nil {
		text, err := json.Marshal(r.tree)
		if err != nil {
			panic(err)
		}
		moved.tree = parsed(word.ReplaceAllString(string(text), namespace))
	}
	return &moved
}

// TestCreatesIgnoreDeletion checks that an object that a PUT or an apply creates is not being deleted, even if the
// request says so. No manager owns the fields.
func TestCreatesIgnoreDeletion(t *testing.T) {
	p := newPair(t)
	p.ours.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"a"}}`))
	const metadata = `"metadata":{"name":"x","deletionTimestamp":"2020-01-01T00:00:00Z","deletionGracePeriodSeconds":0}`
	for _, c := range []call{
		patch("apply-patch+yaml", configmaps+"/x?fieldManager=m", `{"apiVersion":"v1","kind":"ConfigMap",`+metadata+`}`),
		put("/apis/coordination.k8s.io/v1/namespaces/a/leases/x", `{`+metadata+`}`),
	} {
		if a := p.ours.call(t, c); a.code != http.StatusCreated || bytes.Contains(a.body, []byte("deletion")) {
			t.Errorf("%s %s: got status %d, want 201 and no field of a deletion: %s", c.method, c.path, a.code, a.body)
		}
	}
	c := patch("apply-patch+yaml", configmaps+"/y?fieldManager=m", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"y","deletionTimestamp":"soon"}}`)
	if a := p.ours.call(t, c); a.code < http.StatusBadRequest {
		t.Errorf("a malformed deletionTimestamp: got status %d, want a refusal: %s", a.code, a.body)
	}
}

// run sends a sequence to one side and then to the other. It returns the first difference, and whether a second ended
// before one of them was done.
func (w *writesPair) run(namespace string, sequence []*writeRequest) (diff string, straddled bool) {
	t := w.t
	align(t, w.ours, w.theirs)
	var all [2][]observed
	var metrics [3]map[string]float64
	var contents [2][]string
	metrics[0] = w.metrics()
	for i, s := range []*writesSide{w.ours, w.theirs} {
		s.mu.Lock()
		clear(s.made)
		s.mu.Unlock()
		s.must(t, post("/api/v1/namespaces", fmt.Sprintf(`{"metadata":{"name":%q}}`, namespace)))
		s.drop()
		began := time.Now().Unix()
		for j, r := range sequence {
			rand.Seed(int64(w.sequences)*1000 + int64(j)) // of names that are generated
			seen, err := s.send(t, r)
			if err != nil {
				seen.body = "error: " + err.Error()
			}
			all[i] = append(all[i], seen)
			w.codes[fmt.Sprint(r.method, " ", seen.code)]++
			s.awaitWrites(r.kind, r.namespace)
		}
		straddled = straddled || time.Now().Unix() != began
		contents[i] = s.contents(t, namespace)
		metrics[i+1] = w.metrics()
		s.empty(namespace)
	}
	for i := range sequence {
		if diff := cmp.Diff(all[1][i], all[0][i], cmp.AllowUnexported(observed{})); diff != "" {
			return fmt.Sprintf("the last of\n%v\n(-upstream +larder):\n%s", sequence[:i+1], diff), straddled
		}
	}
	if diff := cmp.Diff(contents[1], contents[0]); diff != "" {
		return fmt.Sprintf("stored after\n%v\n(-upstream +larder):\n%s", sequence, diff), straddled
	}
	if diff := cmp.Diff(growth(metrics[1], metrics[2]), growth(metrics[0], metrics[1])); diff != "" {
		return fmt.Sprintf("metrics of\n%v\n(-upstream +larder):\n%s", sequence, diff), straddled
	}
	return "", straddled
}

// drop discards the records of requests that are not compared.
func (s *writesSide) drop() {
	for len(s.audited.all) > 0 {
		<-s.audited.all
	}
}

// empty deletes all objects whose keys contain a namespace's name.
func (s *writesSide) empty(namespace string) {
	page, err := s.store.Range(context.Background(), kv.RangeOptions{Prefix: "/registry/"})
	if err != nil {
		s.t.Fatal(err)
	}
	gone := make(map[string][]byte)
	for _, item := range page.Items {
		if strings.Contains(item.Key, namespace) {
			gone[item.Key] = nil
		}
	}
	s.store.PutAll(gone)
}

// awaitWrites waits until the side's cache has all writes: a write that begins with an older object is admitted once
// more, as in upstream.
func (s *writesSide) awaitWrites(k *writtenKind, namespace string) {
	s.must(s.t, get(k.collection(namespace)+"?fieldSelector=metadata.name%3Dnone"))
}

// comparedMetrics are the names of the metrics that writes change.
var comparedMetrics = []string{
	"apiserver_request_total", "apiserver_request_body_size_bytes", "apiserver_request_duration_seconds_count", "apiserver_request_sli_duration_seconds_count",
	"apiserver_response_sizes", "apiserver_request_aborts_total", "apiserver_request_terminations_total", "apiserver_requested_deprecated_apis", "field_validation_request_duration_seconds_count",
	"apiserver_admission_step_admission_duration_seconds_count", "apiserver_audit_event_total", "apiserver_audit_level_total",
}

// metrics returns the compared metrics of both sides together: they share upstream's.
func (w *writesPair) metrics() map[string]float64 {
	all := make(map[string]float64)
	page := w.ours.must(w.t, get("/metrics"))
	w.ours.drop()
	for line := range strings.Lines(string(page.body)) {
		compared := func(name string) bool { return strings.HasPrefix(line, name) }
		if !slices.ContainsFunc(comparedMetrics, compared) || strings.Contains(line, "_bucket{") {
			continue
		}
		at := strings.LastIndexByte(strings.TrimSpace(line), ' ')
		value, err := strconv.ParseFloat(strings.TrimSpace(line[at:]), 64)
		if err != nil {
			w.t.Fatal(err)
		}
		all[line[:at]] = value
	}
	return all
}

// growth returns the increase of the metrics, except those of reads, which informers send as well.
func growth(before, after map[string]float64) map[string]float64 {
	all := make(map[string]float64)
	for name, value := range after {
		if grown := value - before[name]; grown != 0 && !readVerbs.MatchString(name) {
			all[name] = grown
		}
	}
	return all
}

var readVerbs = regexp.MustCompile(`verb="(GET|LIST|WATCH)"`)
