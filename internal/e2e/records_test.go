package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/larder-io/larder/internal/proctest"
)

// recordsFile has kube-apiserver's records, for runs without -stock.
var recordsFile = filepath.Join("testdata", "records.json")

// recordedWrites and recordedReads are the traffic: requests for built-in and custom resources, for deprecated kinds,
// and with a known resourceVersion.
func recordedWrites() []trafficRequest {
	return append(writeTraffic(), []trafficRequest{
		// Services get the first 16 addresses only after all others are in use.
		{method: http.MethodPost, path: addresses, body: `{"metadata":{"name":"10.0.0.12"},"spec":{"parentRef":{"group":"","resource":"services","namespace":"metered","name":"s"}}}`},
		{method: http.MethodPatch, path: metered + "endpoints/e", kind: mergePatch, body: `{"metadata":{"labels":{"a":"b"}}}`},
	}...)
}

func recordedReads() []trafficRequest {
	return slices.Concat(readsOf(metered+"configmaps", "c"), readsOf(gadget, "g"), readsOf(addresses, "10.0.0.12"), readsOf(metered+"endpoints", "e"), unprivilegedTraffic(), []trafficRequest{
		get("/api/v1/componentstatuses"), get("/api/v1/watch/endpoints?timeoutSeconds=1"), get("/version"), get("/nothing"),
		{method: http.MethodGet, path: addresses + "/10.0.0.12", token: "alice-token"},
	})
}

const addresses = "/apis/networking.k8s.io/v1beta1/ipaddresses"

// knownRecords match records that differ, with reasons.
var knownRecords = []struct {
	record *regexp.Regexp
	reason string
}{
	{
		regexp.MustCompile(`stage:"ResponseComplete".*resourceVersion=9999999&timeout=1s`),
		"no handler of a read that waits for a revision outlives its deadline and records an error",
	},
}

// TestLogsMatchKubeAPIServer sends the same traffic to kube-apiserver and Larder and compares their records: log lines
// in JSON, and audit events with their annotations, sorted and without duplicates. Values that vary between requests of
// the same kind, such as times, are replaced by their types. Without -stock, it compares with recorded results.
func TestLogsMatchKubeAPIServer(t *testing.T) {
	hook := metricsWebhook(t)
	larder := record(t, hook, false)
	stock := stocks(t, recordsFile, func() []string { return record(t, hook, true) })
	compareRecords(t, stock, larder)
}

// compareRecords reports records that only one server has, except known differences.
func compareRecords(t *testing.T, stock, larder []string) {
	t.Helper()
	if len(stock) == 0 {
		t.Error("invalid: kube-apiserver has no records")
	}
	used := make([]bool, len(knownRecords))
	report := func(whose string, records, others []string) {
		for _, record := range records {
			if slices.Contains(others, record) {
				continue
			}
			known := false
			for i := range knownRecords {
				if knownRecords[i].record.MatchString(record) {
					known, used[i] = true, true
				}
			}
			if !known {
				t.Errorf("only %s has %s", whose, record)
			}
		}
	}
	report("stock", stock, larder)
	report("larder", larder, stock)
	for i, known := range knownRecords {
		if !used[i] {
			t.Errorf("%s: no longer differs: remove it from the list", known.record)
		}
	}
}

// record starts a server with its own etcd, sends it the traffic, and returns its records.
func record(t *testing.T, hook *httptest.Server, stock bool) []string {
	t.Helper()
	audited := filepath.Join(t.TempDir(), "audit.log")
	args := append(metricsArgs(t), "--logging-format=json", "--audit-log-path="+audited, "--audit-log-mode=blocking", "--runtime-config=networking.k8s.io/v1beta1=true")
	m := newPlane(t, args...).member(stock, "", proctest.Port(t)).start()
	read := func() string {
		raw, err := os.ReadFile(audited)
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	m.setUp(t, hook)
	logged, before := len(m.Output()), len(read())
	for _, v := range recordedWrites() {
		m.send(v)
	}
	concurrently(recordedReads(), func(v trafficRequest) { m.send(v) })
	m.liveWatch(t)
	for _, v := range cleanupRequests() {
		m.send(v)
	}
	var made []string
	m.Eventually(t, "has written all records", func() error {
		lines, logs := normal(t, m.Output()[logged:], `"msg":"HTTP"`)
		events, audits := normal(t, read()[before:], `"kind":"Event"`)
		for id, stages := range audits {
			if slices.Contains(stages, "RequestReceived") && (len(stages) < 2 || logs[id] == nil) {
				_, request, _ := strings.Cut(read(), id)
				return fmt.Errorf("no last record of %s: %.300s", id, request)
			}
		}
		made = append(lines, events...)
		return nil
	})
	return made
}

// normal returns the records of the traffic in a text with one record per line, and the stages of each request, by
// audit ID.
func normal(t *testing.T, text, mark string) (all []string, stages map[string][]string) {
	t.Helper()
	stages = make(map[string][]string)
	for line := range strings.Lines(text) {
		if !strings.Contains(line, mark) || !strings.Contains(line, `"userAgent":"meter/1.0"`) {
			continue
		}
		var known struct {
			Stage, AuditID, Verb string
			ID                   string `json:"audit-ID"`
		}
		if err := json.Unmarshal([]byte(line), &known); err != nil {
			return nil, nil // the record is incomplete
		}
		stages[known.ID+known.AuditID] = append(stages[known.ID+known.AuditID], known.Stage)
		if known.Stage == "RequestReceived" && known.Verb != "create" {
			continue // later stages contain it
		}
		var b strings.Builder
		d := json.NewDecoder(strings.NewReader(line))
		d.UseNumber()
		if err := normalize(d, "", &b); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		record := strings.Replace(latencies.ReplaceAllString(b.String(), ""), ":{,", ":{", 1)
		all = append(all, currents.ReplaceAllString(record, "$1 N"))
	}
	slices.Sort(all)
	return slices.Compact(all), stages
}

// normalize copies one value of d, with sorted keys, and replaces values that vary.
func normalize(d *json.Decoder, key string, b *strings.Builder) error {
	token, err := d.Token()
	if err != nil {
		return err
	}
	delim, ok := token.(json.Delim)
	if !ok {
		if slices.Contains(fleeting, key) {
			fmt.Fprintf(b, "(%T)", token)
			return nil
		}
		fmt.Fprintf(b, "%#v", token)
		return nil
	}
	b.WriteString(delim.String())
	for i := 0; d.More(); i++ {
		if i > 0 {
			b.WriteByte(',')
		}
		inner := key
		if delim == '{' {
			name, err := d.Token()
			if err != nil {
				return err
			}
			inner = name.(string)
			b.WriteString(inner + ":")
		}
		if err := normalize(d, inner, b); err != nil {
			return err
		}
	}
	end, err := d.Token()
	if err != nil {
		return err
	}
	b.WriteString(end.(json.Delim).String())
	return nil
}

// fleeting are keys whose values differ between requests.
var fleeting = []string{
	"ts", "caller", "latency", "audit-ID", "srcIP", "apf_init_latency", "apf_execution_time", "watchlist_init_latency", "statusStack",
	"auditID", "requestReceivedTimestamp", "stageTimestamp", "uid", "resourceVersion",
	"authentication.kubernetes.io/credential-id", "authentication.kubernetes.io/issued-credential-id",
}

// latencies are annotations of slow requests; currents are current revisions.
var (
	latencies = regexp.MustCompile(`,?apiserver\.latency\.k8s\.io/[\w-]+:"[^"]*"`)
	currents  = regexp.MustCompile(`(current|requested):? \d+`)
)
