package e2e_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/larder-io/larder/internal/proctest"
)

// latenciesFile has kube-apiserver's records of slow requests, for runs without -stock.
var latenciesFile = filepath.Join("testdata", "latencies.json")

// noLatency are the parts of a slow request that kube-apiserver reports and Larder does not: it decodes objects when
// they arrive from the store, not when a client requests them. Larder also reports how long a write took in etcd, which
// kube-apiserver does not.
var noLatency = []string{"transform-response-object"}

// slowReads are requests to a server whose etcd temporarily does not respond.
func slowReads() []trafficRequest {
	const maps = "/api/v1/namespaces/default/configmaps"
	return []trafficRequest{
		get(maps + "/c"), get(maps + "/none"), get(maps), get(maps + "?limit=1"), get(maps + "?fieldSelector=metadata.name%3Dc"),
		{method: http.MethodGet, path: maps, accept: inProtobuf}, {method: http.MethodGet, path: maps, accept: asRows}, {method: http.MethodGet, path: maps, accept: asPartial},
		{method: http.MethodPost, path: maps, body: `{"metadata":{"name":"d"}}`},
	}
}

// latencyParts returns the parts of slow requests that the audit log has durations of, by request.
func latencyParts(t *testing.T, stock bool) map[string][]string {
	t.Helper()
	dir := t.TempDir()
	policy, audited := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")
	if err := os.WriteFile(policy, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	url, etcd := startEtcd(t, filepath.Join(dir, "etcd"))
	p := &plane{t: t, url: url, args: append(planeFiles(t), "--audit-policy-file="+policy, "--audit-log-path="+audited, "--audit-log-mode=blocking")}
	m := p.member(stock, "", proctest.Port(t)).start()
	if code, body := m.ask(http.MethodPost, "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"c"}}`, nil); code != http.StatusCreated {
		t.Fatal(code, body)
	}
	if err := etcd.Pause(); err != nil {
		t.Fatal(err)
	}
	var reads sync.WaitGroup
	for _, v := range slowReads() {
		reads.Go(func() {
			if code, body := m.send(v); code >= http.StatusInternalServerError {
				t.Errorf("%v: %d %s", v, code, body)
			}
		})
	}
	var last time.Time // the time at which the last of the requests had been received
	m.Eventually(t, "the requests wait long enough", func() error {
		events := eventsIn(t, audited, auditv1.StageRequestReceived, "meter/")
		if len(events) < len(slowReads()) {
			return fmt.Errorf("%d requests have been received", len(events))
		}
		if last.IsZero() {
			last = time.Now()
		}
		if waited := time.Since(last); waited < time.Second {
			return errors.New(waited.String())
		}
		return nil
	})
	if err := etcd.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	reads.Wait()
	if err := m.Terminate(t); err != nil { // the exit writes the last records
		t.Fatal(err)
	}
	parts := make(map[string][]string)
	for _, e := range eventsIn(t, audited, auditv1.StageResponseComplete, "meter/") {
		request := fmt.Sprintf("%s %s %d", e.Verb, e.RequestURI, e.ResponseStatus.Code)
		parts[request] = []string{}
		for _, key := range slices.Sorted(maps.Keys(e.Annotations)) {
			if part, ok := strings.CutPrefix(key, "apiserver.latency.k8s.io/"); ok {
				parts[request] = append(parts[request], part)
			}
		}
	}
	return parts
}

// eventsIn returns the events of a stage in an audit log, of requests whose user agent has a prefix.
func eventsIn(t *testing.T, file string, stage auditv1.Stage, agent string) (events []auditv1.Event) {
	t.Helper()
	log, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	for lines := json.NewDecoder(log); ; {
		var e auditv1.Event
		if lines.Decode(&e) != nil { // the last line may be incomplete
			return events
		}
		if strings.HasPrefix(e.UserAgent, agent) && e.Stage == stage {
			events = append(events, e)
		}
	}
}

// TestSlowRequestsReportTheirLatencies checks that audit events of slow requests have kube-apiserver's latency
// annotations, except those in noLatency.
func TestSlowRequestsReportTheirLatencies(t *testing.T) {
	t.Parallel()
	larder := latencyParts(t, false)
	stock := stocks(t, latenciesFile, func() map[string][]string { return latencyParts(t, true) })
	if len(stock) < len(slowReads())-3 { // some differ only in their Accept header
		t.Errorf("invalid: kube-apiserver has written %d records", len(stock))
	}
	for request := range union(stock, larder) {
		known := func(part string) bool {
			return slices.Contains(noLatency, part) || part == "etcd" && strings.HasPrefix(request, "create ")
		}
		if !slices.Equal(slices.DeleteFunc(slices.Clone(stock[request]), known), slices.DeleteFunc(slices.Clone(larder[request]), known)) {
			t.Errorf("%s: got %v, kube-apiserver reports %v", request, larder[request], stock[request])
		}
	}
}
