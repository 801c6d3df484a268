package starts

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/larder-io/larder/bench/process"
	"github.com/larder-io/larder/bench/testservers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stored is a custom resource as a server stores it.
const stored = `{"apiVersion":"bench.example.com/v1","kind":"Worker","metadata":{"creationTimestamp":"2026-01-01T00:00:00Z","generation":1,"name":"worker-0","namespace":"bench-0","uid":"u"},"spec":{"containers":[{"env":[{"name":"A","value":"1"}],"imagePullPolicy":"IfNotPresent","name":"main"}],"replicas":1}}` + "\n"

// TestDataAreWhatTheySay: objects decode, have keys of their own, and differ as far as they
// shall.
func TestDataAreWhatTheySay(t *testing.T) {
	const n = 300
	for _, d := range kinds() {
		if d.item == nil {
			continue
		}
		keys := make(map[string]bool)
		for _, i := range []int{0, 1, n - 1} {
			p, err := d.item(i, n, []byte(stored))
			if err != nil {
				t.Fatalf("%s: %v", d.name, err)
			}
			keys[string(p.Key)] = true
			if !strings.HasPrefix(string(p.Key), d.prefix) {
				t.Errorf("%s: key %s is not below %s", d.name, p.Key, d.prefix)
			}
			if !d.custom {
				checkStored(t, d, p)
			}
		}
		if len(keys) != 3 {
			t.Errorf("%s: keys %v, want three", d.name, keys)
		}
	}
}

// checkStored checks an object of a built-in kind.
func checkStored(t *testing.T, d *data, p pair) {
	t.Helper()
	obj, kind, err := scheme.Codecs.UniversalDeserializer().Decode(p.Value, nil, nil)
	if err != nil {
		t.Fatalf("%s: %v", d.name, err)
	}
	m, err := meta.Accessor(obj)
	if err != nil || string(p.Key) != d.prefix+m.GetNamespace()+"/"+m.GetName() || m.GetUID() == "" {
		t.Errorf("%s: %s is under %s: %v", d.name, m.GetName(), p.Key, err)
	}
	if d.name == "autoscalers" && kind.Version != "v1" {
		t.Errorf("%s: version %s, want v1", d.name, kind.Version)
	}
	if pod, ok := obj.(*corev1.Pod); ok {
		own := pod.Spec.Containers[0].Env[len(pod.Spec.Containers[0].Env)-1].Name == "INSTANCE"
		if own != (d.name != "shared") || (pod.Spec.EnableServiceLinks == nil) != (d.name == "old") {
			t.Errorf("%s: own environment %t, service links %v", d.name, own, pod.Spec.EnableServiceLinks)
		}
	}
}

// TestCustomResourcesAreWrittenAsServersDo: members in order and a newline; the old ones lack
// what has a default.
func TestCustomResourcesAreWrittenAsServersDo(t *testing.T) {
	want := strings.NewReplacer("2026-01-01T00:00:00Z", "2026-09-21T14:13:27Z", "worker-0", "worker-7", `"uid":"u"`, `"uid":"0d6f3a52-6a3e-4f5b-9a53-000000000007"`,
		`"value":"1"}`, `"value":"1"},{"name":"INSTANCE","value":"instance-7"}`).Replace(stored)
	p, err := worker(7, 10, []byte(stored))
	if err != nil || string(p.Value) != want {
		t.Errorf("got %s\nwant %s\n%v", p.Value, want, err)
	}
	want = strings.NewReplacer(`"imagePullPolicy":"IfNotPresent",`, "", `,"replicas":1`, "").Replace(want)
	if p, err = oldWorker(7, 10, []byte(stored)); err != nil || string(p.Value) != want {
		t.Errorf("old: got %s\nwant %s\n%v", p.Value, want, err)
	}
	for _, broken := range []string{"", "{}", `{"metadata":{},"spec":{"containers":[]}}`} {
		if _, err := worker(0, 1, []byte(broken)); err == nil {
			t.Errorf("%q is taken for a custom resource", broken)
		}
	}
}

// TestStore writes all pairs, compacts at the last revision, and says what etcd answers.
func TestStore(t *testing.T) {
	var mu sync.Mutex
	kept, compacted, defragmented := make(map[string]string), "", false
	etcd := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		var asked struct {
			Key      []byte
			Revision string
			Success  []struct{ RequestPut pair }
		}
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		answer := map[string]any{"header": map[string]any{"revision": "17"}}
		switch r.URL.Path {
		case "/v3/kv/txn":
			for _, op := range asked.Success {
				kept[string(op.RequestPut.Key)] = string(op.RequestPut.Value)
			}
			answer["succeeded"] = len(asked.Success) <= 128
		case "/v3/kv/range":
			answer["count"] = fmt.Sprint(len(kept))
			if value, ok := kept[string(asked.Key)]; ok {
				answer["kvs"] = []pair{{asked.Key, []byte(value)}}
			}
		case "/v3/kv/compaction":
			compacted = asked.Revision
		case "/v3/maintenance/defragment":
			defragmented = true
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	defer etcd.Close()
	s := &store{etcd.URL, &http.Client{}}
	defer s.client.CloseIdleConnections()
	const n = 200
	item := func(i int) (pair, error) { return pair{fmt.Appendf(nil, "/a/%d", i), []byte{0, byte(i)}}, nil }
	if err := s.fill(t.Context(), n, item); err != nil || len(kept) != n {
		t.Fatalf("%d keys, want %d: %v", len(kept), n, err)
	}
	if value, err := s.get(t.Context(), "/a/7"); err != nil || !bytes.Equal(value, []byte{0, 7}) {
		t.Errorf("got %q, %v", value, err)
	}
	if _, err := s.get(t.Context(), "/b"); err == nil {
		t.Error("a key that is not there has a value")
	}
	if count, err := s.count(t.Context(), "/a/"); err != nil || count != fmt.Sprint(n) {
		t.Errorf("%s keys, %v", count, err)
	}
	if err := s.compact(t.Context()); err != nil || compacted != "17" || !defragmented {
		t.Errorf("compacted at %q, defragmented %t: %v", compacted, defragmented, err)
	}
	failure := fmt.Errorf("no item")
	if err := s.fill(t.Context(), 1, func(int) (pair, error) { return pair{}, failure }); err != failure {
		t.Errorf("got %v, want %v", err, failure)
	}
	etcd.Config.Handler = http.NotFoundHandler()
	if err := s.compact(t.Context()); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("got %v, want what etcd answered", err)
	}
}

// TestTable has medians with their spread, ratios and the goals that are missed.
func TestTable(t *testing.T) {
	table := &Table{Objects: 5, Head: testservers.Head{Command: "larder-bench starts"}}
	add := func(server string, cpu time.Duration, memory int64) {
		c := Cost{Wall: cpu, Server: process.Usage{CPU: cpu, PeakRSS: memory}, Etcd: time.Second}
		table.Results = append(table.Results, &Result{Data: "own", Server: server, Ready: c, Listed: c, Bytes: 1000})
	}
	add(testservers.Stock, 10*time.Second, 4e9)
	add(testservers.Stock, 14*time.Second, 4e9)
	add(testservers.Larder, 2*time.Second, 1e9)
	text := table.Markdown()
	for _, want := range []string{"| P1 |", "12.0 s (10.0 s–14.0 s) / 2.00 s, **6** |", "4.00 GB / 1.00 GB, **4** (goal 5) |", "5 objects", "1.00 s / 1.00 s |"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "P2") || strings.Contains(text, "bytes") {
		t.Errorf("too much in\n%s", text)
	}
	table.Results[2].Bytes = 900
	if text := table.Markdown(); !strings.Contains(text, "own: a list of kube-apiserver has 1000 bytes, and one of Larder 900.") {
		t.Errorf("another list is not told in\n%s", text)
	}
}

// TestConfigs that cannot be.
func TestConfigs(t *testing.T) {
	for want, c := range map[string]Config{
		"one object": {Trials: testservers.Trials{Rounds: 1}},
		"one round":  {Objects: 1},
		"no server":  {Objects: 1, Trials: testservers.Trials{Rounds: 1, Servers: []string{"other"}}},
		"no data":    {Objects: 1, Trials: testservers.Trials{Rounds: 1}, Data: []string{"other"}},
	} {
		if _, err := Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
