package e2e_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/larder-io/larder/internal/proctest"
)

// metricsFile has kube-apiserver's metrics, for runs without -stock.
var metricsFile = filepath.Join("testdata", "metrics.json")

// family describes a metric.
type family struct {
	Type, Help string
	Labels     []string            `json:",omitempty"`
	Bounds     []string            `json:",omitempty"`
	Values     map[string][]string `json:",omitempty"` // values of the labels whose values are compared
}

// measured is the part of a server's metrics that the test compares.
type measured struct {
	Families map[string]family
	Counts   map[string]float64 // increase during the traffic, by sample
	Codes    map[string]int     // of the responses
	Lines    map[string]line    // log lines about the traffic
}

// stocks returns kube-apiserver's results: from measure if -stock is set, otherwise from the recorded file. With
// -rewrite-metrics it records them.
func stocks[T any](t *testing.T, file string, measure func() T) (result T) {
	t.Helper()
	if *stockBinary != "" {
		result = measure()
	} else {
		raw, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(raw, &result)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if *rewriteMetrics {
		raw, err := json.MarshalIndent(result, "", " ")
		if err == nil {
			err = os.WriteFile(file, append(raw, '\n'), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return result
}

// TestMetricsMatchKubeAPIServer sends kube-apiserver and Larder the same traffic and compares their metrics and logs.
// Without -stock it compares with recorded results.
func TestMetricsMatchKubeAPIServer(t *testing.T) {
	hook := metricsWebhook(t)
	larder := measure(t, hook, false)
	stock := stocks(t, metricsFile, func() measured { return measure(t, hook, true) })
	for what, code := range stock.Codes {
		if larder.Codes[what] != code {
			t.Errorf("invalid: %s: kube-apiserver sent status %d, Larder %d", what, code, larder.Codes[what])
		}
	}
	d := &metricDifferences{t: t, seen: make(map[int]bool)}
	d.compareFamilies(stock.Families, larder.Families)
	d.compareCounts(stock.Counts, larder.Counts)
	d.compareLines(stock.Lines, larder.Lines)
	d.report()
}

// TestQueuesOfAnIdleServerAreEmpty checks that controllers process everything in their queues.
func TestQueuesOfAnIdleServerAreEmpty(t *testing.T) {
	m := newPlane(t).member(false, "", proctest.Port(t)).start()
	m.Eventually(t, "has empty queues", func() error {
		queues := m.scrape(t)["workqueue_depth"].GetMetric()
		if len(queues) == 0 {
			return errors.New("the metrics have no queues")
		}
		for _, q := range queues {
			if q.GetGauge().GetValue() > 0 {
				return fmt.Errorf("%v", q)
			}
		}
		return nil
	})
}

// measure starts a server with its own etcd, and sends it the traffic.
func measure(t *testing.T, hook *httptest.Server, stock bool) measured {
	t.Helper()
	p := newPlane(t, metricsArgs(t)...)
	m := p.member(stock, "", proctest.Port(t)).start()
	m.setUp(t, hook)
	before := m.scrape(t)
	logged := len(m.Output())
	made := measured{Codes: m.round(t)}
	after := m.scrape(t)
	made.Families, made.Counts = shapes(after), counts(before, after)
	all := cleanupRequests()
	last := fmt.Sprintf("URI=%q", all[len(all)-1].path) // the server logs it before it responds; the test may read the log later
	m.Eventually(t, "logs the last request", func() error {
		if !strings.Contains(m.Output()[logged:], last) {
			return fmt.Errorf("the log has no line with %s", last)
		}
		return nil
	})
	made.Lines = lines(t, m.Output()[logged:])
	return made
}

// scrape reads the metrics as Prometheus does.
func (m *member) scrape(t *testing.T) map[string]*dto.MetricFamily {
	t.Helper()
	code, text := m.ask(http.MethodGet, "/metrics", "", nil)
	if code != http.StatusOK {
		t.Fatalf("GET /metrics: got %d %s, want 200", code, text)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	return families
}

// plainLabels are labels whose values also depend on the server's own requests. The counts compare the values that
// the traffic causes.
var plainLabels = []string{"group", "version", "resource", "subresource", "scope", "verb", "code", "host"}

// shapes returns the description of every family that is not Larder's own.
func shapes(families map[string]*dto.MetricFamily) map[string]family {
	all := make(map[string]family)
	for name, f := range families {
		if strings.HasPrefix(name, "larder_") {
			continue
		}
		shape := family{Type: f.GetType().String(), Help: f.GetHelp(), Values: make(map[string][]string)}
		for _, sample := range f.GetMetric() {
			for _, l := range sample.GetLabel() {
				if !slices.Contains(shape.Labels, l.GetName()) {
					shape.Labels = append(shape.Labels, l.GetName())
				}
				if !slices.Contains(plainLabels, l.GetName()) && !slices.Contains(shape.Values[l.GetName()], l.GetValue()) {
					shape.Values[l.GetName()] = append(shape.Values[l.GetName()], l.GetValue())
				}
			}
			if shape.Bounds == nil {
				for _, bucket := range sample.GetHistogram().GetBucket() {
					shape.Bounds = append(shape.Bounds, strconv.FormatFloat(bucket.GetUpperBound(), 'g', -1, 64))
				}
			}
		}
		slices.Sort(shape.Labels)
		for _, values := range shape.Values {
			slices.Sort(values)
		}
		all[name] = shape
	}
	return all
}

// tolerance is the permitted relative difference of the counts and sums of a family. With a sum of 0, sums are not
// compared.
type tolerance struct {
	count, sum float64
	resources  []string // only these are compared; nil means all
}

const (
	ownPart  = 0.1  // share of a server's own requests
	sizePart = 0.03 // share of a size that depends on revisions and names
)

// countedFamilies are the families whose samples for the traffic's resources are compared; for histograms, the number
// of observations.
var countedFamilies = map[string]tolerance{
	"apiserver_request_total":                     {},
	"apiserver_request_duration_seconds":          {},
	"apiserver_request_sli_duration_seconds":      {},
	"apiserver_response_sizes":                    {sum: sizePart},
	"apiserver_request_body_size_bytes":           {sum: sizePart},
	"apiserver_request_terminations_total":        {},
	"apiserver_requested_deprecated_apis":         {},
	"apiserver_watch_events_total":                {resources: watchedResources},
	"apiserver_watch_events_sizes":                {sum: sizePart, resources: watchedResources},
	"apiserver_watch_list_duration_seconds":       {},
	"apiserver_watch_cache_consistent_read_total": {},
	"apiserver_cache_list_total":                  {},
	"apiserver_cache_list_returned_objects_total": {},
	"apiserver_admission_webhook_request_total":   {},
	"apiserver_longrunning_requests":              {},
	"serviceaccount_valid_tokens_total":           {},
	"authentication_attempts":                     {count: ownPart},
	"authenticated_user_requests":                 {count: ownPart},
	"authorization_attempts_total":                {count: ownPart},
	"apiserver_request_filter_duration_seconds":   {count: ownPart},
}

// ownTraffic are resources that servers request themselves at any time.
var ownTraffic = []string{"leases", "events", "nodes", "pods", "secrets", "apiservices", "flowschemas", "prioritylevelconfigurations", "servicecidrs", "ipaddresses", "namespaces", "services", "serviceaccounts", "customresourcedefinitions", "endpointslices", "selfsubjectaccessreviews"}

// watchedResources are resources that the traffic watches, and the servers themselves do not: their own watches get
// bookmarks at any time.
var watchedResources = []string{"deployments", "endpoints", "gadgets"}

// counts returns the increase of the samples in countedFamilies.
func counts(before, after map[string]*dto.MetricFamily) map[string]float64 {
	all := make(map[string]float64)
	for name, within := range countedFamilies {
		then, gauge := samplesOf(before[name], within), after[name].GetType() == dto.MetricType_GAUGE
		for sample, value := range samplesOf(after[name], within) {
			if !gauge {
				value -= then[sample]
			}
			if value != 0 {
				all[name+" "+sample] = value
			}
		}
	}
	return all
}

// samplesOf returns the samples for the traffic's resources.
func samplesOf(f *dto.MetricFamily, within tolerance) map[string]float64 {
	all := make(map[string]float64)
	for _, m := range f.GetMetric() {
		labels, mine := "", true
		for _, l := range m.GetLabel() {
			labels += l.GetName() + "=" + l.GetValue() + " "
			if l.GetName() == "resource" {
				mine = l.GetValue() != "" && !slices.Contains(ownTraffic, l.GetValue()) &&
					(within.resources == nil || slices.Contains(within.resources, l.GetValue()))
			}
		}
		if !mine {
			continue
		}
		switch {
		case m.Histogram != nil:
			all[labels] = float64(m.GetHistogram().GetSampleCount())
			if within.sum > 0 {
				all["sum "+labels] = m.GetHistogram().GetSampleSum()
			}
		case m.Counter != nil:
			all[labels] = m.GetCounter().GetValue()
		case m.Gauge != nil:
			all[labels] = m.GetGauge().GetValue()
		}
	}
	return all
}

// metricDifferences compares metrics, and accepts the known differences.
type metricDifferences struct {
	t    *testing.T
	seen map[int]bool // indexes of knownDifferences
}

// differ reports a difference unless it is known.
func (d *metricDifferences) differ(name, aspect, format string, args ...any) {
	d.t.Helper()
	text := fmt.Sprintf(format, args...)
	for i, known := range knownDifferences {
		if known.name.MatchString(name) && slices.Contains(strings.Fields(known.aspects), aspect) {
			d.seen[i] = true
			return
		}
	}
	d.t.Errorf("%s: %s: %s", name, aspect, text)
}

func (d *metricDifferences) report() {
	for i, known := range knownDifferences {
		if !d.seen[i] && !known.random {
			d.t.Errorf("%v no longer differs in %s (%s): remove it from the list", known.name, known.aspects, known.reason)
		}
	}
}

func (d *metricDifferences) compareFamilies(stock, larder map[string]family) {
	for name := range union(stock, larder) {
		a, inStock := stock[name]
		b, inLarder := larder[name]
		switch {
		case !inLarder:
			d.differ(name, "missing", "Larder has no %s", a.Help)
			continue
		case !inStock:
			d.differ(name, "added", "kube-apiserver has no %s", b.Help)
			continue
		}
		if a.Type != b.Type {
			d.differ(name, "type", "stock %s, larder %s", a.Type, b.Type)
		}
		if a.Help != b.Help {
			d.differ(name, "help", "stock %q, larder %q", a.Help, b.Help)
		}
		if !slices.Equal(a.Labels, b.Labels) {
			d.differ(name, "labels", "stock %v, larder %v", a.Labels, b.Labels)
		}
		if !slices.Equal(a.Bounds, b.Bounds) {
			d.differ(name, "bounds", "stock %v, larder %v", a.Bounds, b.Bounds)
		}
		for label := range union(a.Values, b.Values) {
			if !slices.Equal(a.Values[label], b.Values[label]) {
				d.differ(name, "values", "%s: stock %q, larder %q", label, a.Values[label], b.Values[label])
			}
		}
	}
}

func (d *metricDifferences) compareCounts(stock, larder map[string]float64) {
	for _, sample := range slices.Sorted(maps.Keys(union(stock, larder))) {
		name, labels, _ := strings.Cut(sample, " ")
		a, b := stock[sample], larder[sample]
		within := countedFamilies[name].count
		if strings.HasPrefix(labels, "sum ") {
			within = countedFamilies[name].sum
		}
		if strings.Contains(labels, "resource=componentstatuses") && within < 1 {
			within = 0.5 // the response contains errors of other components' ports, which other programs may use
		}
		if math.Abs(a-b) > within*max(a, b) {
			d.differ(sample, "counts", "stock %v, larder %v", a, b)
		}
	}
}

func union[K cmp.Ordered, V any](a, b map[K]V) map[K]bool {
	all := make(map[K]bool)
	for k := range a {
		all[k] = true
	}
	for k := range b {
		all[k] = true
	}
	return all
}
