package starts

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/benchtest"
	"github.com/larder-io/larder/bench/testservers"
)

// The test binary runs as any of the servers, or as a client, if it is started in that role.
func TestMain(m *testing.M) {
	run, ok := map[string]func() error{benchtest.ServerRole: benchtest.Serve, clientRole: runClient}[os.Getenv(benchtest.Role)]
	if !ok {
		goleak.VerifyTestMain(m)
		return
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// TestBesideMeasuresEachKind checks that several servers of each kind are started together and measured.
func TestBesideMeasuresEachKind(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(benchtest.Role, benchtest.ServerRole)
	b := Beside{Count: 2, Rest: time.Millisecond, Trials: testservers.Trials{
		Servers: []string{testservers.Stock, testservers.Larder}, Rounds: 1,
		TestServers: testservers.Config{Dir: t.TempDir(), Stock: program, Larder: program, Etcd: program},
	}}
	results, err := b.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(results) != 2 || results[0].Name != "kube-apiserver: 2 beside each other" || results[1].Name != "Larder: 2 beside each other" {
		t.Fatalf("got %v", results)
	}
	for _, r := range results {
		if r.Ops != 2 || r.Value("time until ready, of one") <= 0 {
			t.Errorf("%s: %d servers, %v", r.Name, r.Ops, r.Values)
		}
	}
	b.TestServers.Dir, b.TestServers.Larder, b.Servers = t.TempDir(), "/bin/false", []string{testservers.Larder, testservers.Stock}
	if results, err := b.Run(t.Context()); len(results) != 0 || err == nil || !strings.HasPrefix(err.Error(), "Larder: ") || !strings.Contains(err.Error(), "larder has ended") {
		t.Errorf("%d results after a failure, error %v; want the error that Larder has ended", len(results), err)
	}
	for _, wrong := range []Beside{{Rest: 1, Trials: b.Trials}, {Count: 1, Trials: b.Trials}, {Count: 1, Rest: 1}} {
		if _, err := wrong.Run(t.Context()); err == nil {
			t.Errorf("%+v was accepted", wrong)
		}
	}
}

// stored is a custom resource as it is stored.
const stored = `{"apiVersion":"bench.example.com/v1","kind":"Worker","metadata":{"creationTimestamp":"2026-01-01T00:00:00Z","generation":1,"name":"worker-0","namespace":"bench-0","uid":"u"},"spec":{"containers":[{"env":[{"name":"A","value":"1"}],"imagePullPolicy":"IfNotPresent","name":"main"}],"replicas":1}}` + "\n"

// custom returns the stored custom resource.
func custom(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON([]byte(stored)); err != nil {
		t.Fatal(err)
	}
	return o
}

// TestGeneratedDataMatchTheirDescription checks that the objects of each kind of data can be decoded, have different
// keys, and differ as described.
func TestGeneratedDataMatchTheirDescription(t *testing.T) {
	const n = 300
	for _, d := range kinds() {
		if d.item == nil {
			continue
		}
		keys := make(map[string]bool)
		for _, i := range []int{0, 1, n - 1} {
			o := d.item(i, n, custom(t))
			keys[o.GetNamespace()+"/"+o.GetName()] = true
			if o.GetUID() == "" {
				t.Errorf("%s: %s has no UID", d.name, o.GetName())
			}
			if !d.custom {
				checkStored(t, d, o)
			}
		}
		if len(keys) != 3 {
			t.Errorf("%s: keys %v, want three", d.name, keys)
		}
	}
}

// checkStored checks an object of a built-in kind.
func checkStored(t *testing.T, d *data, o object) {
	t.Helper()
	value, err := encode(o)
	if err != nil {
		t.Fatalf("%s: %v", d.name, err)
	}
	obj, kind, err := scheme.Codecs.UniversalDeserializer().Decode(value, nil, nil)
	if err != nil {
		t.Fatalf("%s: %v", d.name, err)
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

// TestCustomResourcesAreWrittenAsServersDo checks that keys are sorted, a newline follows, and old objects lack the
// fields with defaults.
func TestCustomResourcesAreWrittenAsServersDo(t *testing.T) {
	want := strings.NewReplacer("2026-01-01T00:00:00Z", "2026-09-21T14:13:27Z", "worker-0", "worker-7", `"uid":"u"`, `"uid":"0d6f3a52-6a3e-4f5b-9a53-000000000007"`,
		`"value":"1"}`, `"value":"1"},{"name":"INSTANCE","value":"instance-7"}`).Replace(stored)
	if got, err := encode(workerWith(nil)(7, 10, custom(t))); err != nil || string(got) != want {
		t.Errorf("got %s\nwant %s\nerror %v", got, want, err)
	}
	want = strings.NewReplacer(`"imagePullPolicy":"IfNotPresent",`, "", `,"replicas":1`, "").Replace(want)
	if got, err := encode(workerWith(lackCustomDefaults)(7, 10, custom(t))); err != nil || string(got) != want {
		t.Errorf("old: got %s\nwant %s\nerror %v", got, want, err)
	}
}

// TestListsAreCompared checks that a list counts as failed if its length differs from the first one's.
func TestListsAreCompared(t *testing.T) {
	first := &bench.Result{Name: "first", Bytes: 1000}
	for size, want := range map[int64]int{1000: 0, 1008: 0, 992: 0, 900: 1} {
		c := &bench.Result{Bytes: size}
		if compare(first, c); c.Errors != want {
			t.Errorf("%d bytes: %d errors (%s), want %d", size, c.Errors, c.FirstError, want)
		}
	}
}

// TestInvalidConfigsAreRejected checks invalid configurations.
func TestInvalidConfigsAreRejected(t *testing.T) {
	for want, c := range map[string]Config{
		"--objects": {Trials: testservers.Trials{Rounds: 1}},
		"--rounds":  {Objects: 1},
		"--server":  {Objects: 1, Trials: testservers.Trials{Rounds: 1, Servers: []string{"other"}}},
		"--data":    {Objects: 1, Trials: testservers.Trials{Rounds: 1}, Data: []string{"other"}},
	} {
		if _, err := Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want %q", err, want)
		}
	}
}
