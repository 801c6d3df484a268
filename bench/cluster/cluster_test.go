package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/testservers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// frame is an event of a watch.
func frame(t *testing.T, kind string, obj runtime.Object) []byte {
	t.Helper()
	e := metav1.WatchEvent{Type: kind}
	e.Object.Raw = bench.EncodeProtobuf(obj)
	body, err := e.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

// TestEventsAreRead checks which names and versions an informer reads from events.
func TestEventsAreRead(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u", ResourceVersion: "17"}}
	// The annotation that marks the end of the initial events may come after others.
	end := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "18", Annotations: map[string]string{"a": "b", "k8s.io/initial-events-end": "true"}}}
	events := bench.Events(iotest.OneByteReader(bytes.NewReader(append(frame(t, "ADDED", pod), frame(t, "BOOKMARK", end)...))), bench.Protobuf)
	var got []string
	for events.Scan() {
		e := events.Bytes()
		o := object(field(field(e, eventBody), rawExtension))
		m := metaOf(o)
		got = append(got, fmt.Sprintf("%s %s/%s %s %d %t", field(e, eventType), m.namespace, m.name, m.uid, m.version, endsInitial(o)))
	}
	if want := "ADDED ns/p u 17 false, BOOKMARK /  18 true"; strings.Join(got, ", ") != want || events.Err() != nil {
		t.Fatalf("%s (%v), want %s", strings.Join(got, ", "), events.Err(), want)
	}
}

// TestPodsAppearAndDisappearOnce checks which changes a node sees when its informer gets events and lists again.
func TestPodsAppearAndDisappearOnce(t *testing.T) {
	sim := newSimulation(t.Context(), newDataset(size{nodes: 1, podsPerNode: 1}), nil, "", true, 0)
	defer sim.close()
	var got []string
	i := sim.newInformer(nil, "/api/v1/pods")
	i.items = make(map[uint64]uint64)
	i.onChange = func(name string, exists bool) { got = append(got, fmt.Sprint(name, exists)) }
	receive := func(kind watch.EventType, name string) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "1"}}
		if kind == watch.Bookmark {
			pod.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
		}
		if err := i.receive(&attempt{phase: newPhase()}, kind, object(bench.EncodeProtobuf(pod))); err != nil {
			t.Fatal(err)
		}
	}
	receive(watch.Added, "a")
	receive(watch.Modified, "a")
	receive(watch.Added, "b")
	receive(watch.Added, "c")
	receive(watch.Deleted, "b")
	receive(watch.Deleted, "b")
	i.fresh = make(map[uint64]uint64) // a WatchList
	receive(watch.Added, "c")
	receive(watch.Added, "d")
	receive(watch.Bookmark, "")
	if want := "atrue btrue ctrue bfalse dtrue afalse"; strings.Join(got, " ") != want {
		t.Errorf("saw %q, want %s", got, want)
	}
}

// TestSlowWorkDelaysNothing checks that slow work does not delay other work that is due, and that close waits for it.
func TestSlowWorkDelaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newSimulation(t.Context(), newDataset(size{nodes: 1, podsPerNode: 1}), nil, "", true, 0)
		start := time.Now()
		var mu sync.Mutex
		var late []time.Duration
		for _, i := range []int{3, 1, 2, 10} {
			p.schedule(start.Add(time.Duration(i)*time.Second), func(due time.Time) {
				mu.Lock()
				late = append(late, time.Since(due))
				mu.Unlock()
				time.Sleep(time.Minute)
			})
		}
		time.Sleep(5 * time.Second)
		p.close()
		if len(late) != 3 || late[0]+late[1]+late[2] != 0 {
			t.Errorf("work began %v after it was due, want three at once", late)
		}
		if took := time.Since(start); took != time.Minute+3*time.Second {
			t.Errorf("close returned after %v, before work in progress had ended", took)
		}
	})
}

// TestClientsShareConnections checks that over HTTP/2 a component's requests and watches share one connection, and that
// over HTTP/1.1 each watch has its own.
func TestClientsShareConnections(t *testing.T) {
	var mu sync.Mutex
	var remotes map[string]bool
	var release chan struct{}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		remotes[r.RemoteAddr] = true
		held := release
		mu.Unlock()
		switch r.URL.Path {
		case "/watch":
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			<-held
		case "/gone":
			http.Error(w, "gone", http.StatusGone)
		default:
			body, _ := io.ReadAll(r.Body)
			fmt.Fprintf(w, "%s %s", r.Method, body)
		}
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	for _, c := range []struct {
		byHTTP2 bool
		want    int
	}{{true, 1}, {false, 4}} {
		mu.Lock()
		remotes, release = make(map[string]bool), make(chan struct{})
		mu.Unlock()
		ctx, cancel := context.WithCancel(t.Context())
		client := newClient(ctx, s.Listener.Addr().String(), "test", tls.Certificate{}, c.byHTTP2)
		for range 3 {
			if _, err := client.send(ctx, bench.Request{Method: http.MethodGet, Path: "/watch"}); err != nil {
				t.Fatal(err)
			}
		}
		for range 5 {
			body, err := client.do(ctx, bench.Request{Method: http.MethodPost, Path: "/", ContentType: "text/plain", Body: []byte(strings.Repeat("x", 20_000))})
			if err != nil || len(body) != len("POST ")+20_000 {
				t.Errorf("HTTP/2 %t: %d bytes, %v", c.byHTTP2, len(body), err)
			}
			if _, err := client.do(ctx, bench.Request{Method: http.MethodGet, Path: "/gone"}); bench.StatusOf(err) != http.StatusGone {
				t.Errorf("HTTP/2 %t: %v, want 410", c.byHTTP2, err)
			}
		}
		mu.Lock()
		if len(remotes) != c.want {
			t.Errorf("HTTP/2 %t: %d connections, want %d", c.byHTTP2, len(remotes), c.want)
		}
		mu.Unlock()
		close(release)
		cancel()
	}
}

// TestPodsKeepTheirDeployment checks that the pod of a slot is replaced by a pod of the same Deployment.
func TestPodsKeepTheirDeployment(t *testing.T) {
	w := newDataset(size{nodes: 5, podsPerNode: 4})
	names := make(map[string]bool)
	for range 3 * w.pods() {
		slot, old, name := w.replace()
		if got, ok := slotOf(name); !ok || got != slot || old.name == name || names[name] {
			t.Fatalf("slot %d: %q replaces %q, but belongs to slot %d", slot, name, old.name, got)
		}
		names[name] = true
	}
	if n := len(w.names(1)); n != podsOfApp {
		t.Errorf("a Deployment has %d pods, want %d", n, podsOfApp)
	}
}

// TestPhasesCountFailures checks that results have the phase's name, and count kinds of failures separately.
func TestPhasesCountFailures(t *testing.T) {
	p := newPhase()
	p.record(leaseRenewal, 3*time.Millisecond, 200, nil)
	p.record(leaseRenewal, 0, 503, errors.New("not now"))
	p.record(watchAgain, 0, 429, errors.New("too many"))
	p.record(watchAgain, 0, 0, fmt.Errorf("late: %w", context.DeadlineExceeded))
	all := p.results(&bench.Result{Name: "Larder: steady", Wall: time.Minute})
	if len(all) != 2 {
		t.Fatalf("%d results, want two", len(all))
	}
	if r := all[0]; r.Name != "Larder: steady: Lease renewal" || r.Ops != 2 || r.Errors != 1 || r.FirstError != "not now" || r.Latency.TotalCount() != 1 {
		t.Errorf("first result: %+v", r)
	}
	if r := all[1]; r.Ops != 2 || r.Refused != 1 || r.Timeouts != 1 || r.Errors != 0 {
		t.Errorf("second result: %+v", r)
	}
}

// TestMetricsAreFound checks that metrics are found by their full names.
func TestMetricsAreFound(t *testing.T) {
	text := []byte("# TYPE a_total counter\na_total_more 3\na_total 1.5e+06\n")
	if v, none := metric(text, "a_total"), metric(text, "b"); v != 1.5e6 || none != 0 {
		t.Errorf("got %g, and %g for a missing metric", v, none)
	}
}

// TestConfigIsChecked checks that an invalid configuration is rejected before anything is started.
func TestConfigIsChecked(t *testing.T) {
	good := Config{Nodes: []int{1}, PodsPerNode: 1, Duration: time.Second, Trials: testservers.Trials{Rounds: 1}}
	for name, spoil := range map[string]func(c *Config){
		"no nodes": func(c *Config) { c.Nodes = nil },
		"no pods":  func(c *Config) { c.PodsPerNode = 0 },
		"protocol": func(c *Config) { c.Protocols = []string{"h3"} },
		"server":   func(c *Config) { c.Servers = []string{"other"} },
	} {
		c := good
		spoil(&c)
		if _, err := Run(t.Context(), c); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
