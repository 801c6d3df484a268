package bench_test

import (
	"context"
	"errors"
	"flag"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/benchtest"
	"github.com/larder-io/larder/bench/process"
)

func TestMain(m *testing.M) {
	// Parallel tests spend most of their time waiting for deadlines of ten seconds.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// target starts a server with pods.
func target(t *testing.T, pods bench.SeedConfig) (*bench.Target, *benchtest.Server) {
	t.Helper()
	server, kubeconfig := benchtest.Start(t)
	target, err := bench.NewTarget(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	target.Process = process.Process{PID: os.Getpid()}
	if pods.Pods > 0 {
		seeded, err := bench.Seed(t.Context(), target, pods)
		if err != nil {
			t.Fatal(err)
		}
		if seeded.Ops != pods.Pods || seeded.Failures() != 0 {
			t.Fatalf("seeding: %d pods, %d errors", seeded.Ops, seeded.Errors)
		}
	}
	return target, server
}

// TestReadCountsWhatItDid checks the counts, latencies and memory in the result, in closed and open loops.
func TestReadCountsWhatItDid(t *testing.T) {
	for _, mode := range []struct {
		name    string
		rate    float64
		chunked bool
	}{{"closed loop", 0, false}, {"open loop", 10_000, false}, {"chunked", 0, true}} {
		t.Run(mode.name, func(t *testing.T) {
			var hits, accepted atomic.Int64
			server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				n := hits.Add(1)
				if r.Header.Get("Accept") == bench.JSON && r.Header.Get("Authorization") == "Bearer secret" && r.Header.Get("Accept-Encoding") == "gzip" {
					accepted.Add(1)
				}
				if n == 5 {
					w.WriteHeader(http.StatusTeapot)
					return
				}
				w.Write(make([]byte, 400))
				if mode.chunked {
					w.(http.Flusher).Flush()
				}
				w.Write(make([]byte, 600))
			}))
			defer server.Close()
			target, err := bench.NewTarget(benchtest.Kubeconfig(t, server))
			if err != nil {
				t.Fatal(err)
			}
			target.Process = process.Process{PID: os.Getpid()}
			var between atomic.Int64
			wanted := int64(11)
			config := bench.ReadConfig{
				Name: "list", Path: "/api/v1/pods", Accept: bench.JSON, Encoding: "gzip", Load: bench.Load{Operations: 11, Clients: 2, Rate: mode.rate},
				Between: func(context.Context, int) error {
					between.Add(1)
					if got := target.Progress(); !strings.HasPrefix(got, "list: ") || !strings.Contains(got, " of 11, ") {
						t.Errorf("progress %q", got)
					}
					return nil
				},
			}
			if mode.rate > 0 {
				if _, err := bench.Read(t.Context(), target, config); err == nil {
					t.Error("the open loop called Between")
				}
				config.Between, wanted = nil, 0
			}
			result, err := bench.Read(t.Context(), target, config)
			if err != nil {
				t.Fatal(err)
			}
			if hits.Load() != 12 || accepted.Load() != 12 || between.Load() != wanted {
				t.Errorf("server saw %d requests, %d with the right headers, %d calls of Between; want 12, 12 and %d: 11 and one warm-up", hits.Load(), accepted.Load(), between.Load(), wanted)
			}
			if result.Ops != 11 || result.Errors != 1 || result.Bytes != 10_000 || result.BytesPerOp() != 1000 {
				t.Errorf("got %d requests, %d errors, %d bytes; want 11, 1, 10000", result.Ops, result.Errors, result.Bytes)
			}
			if !strings.Contains(result.FirstError, "418") {
				t.Errorf("first error %q does not say 418", result.FirstError)
			}
			if n := result.Latency.TotalCount(); n != 10 {
				t.Errorf("histogram has %d values, want the 10 successes", n)
			}
			if result.Server.RSS == 0 || result.Server.PeakRSS < result.Server.RSS || result.Server.Anonymous == 0 {
				t.Errorf("implausible memory %+v", result.Server)
			}
			if got := target.Progress(); got != "" {
				t.Errorf("progress after the end: %q", got)
			}
		})
	}
}

// countConnections counts the connections to a server that has not started yet.
func countConnections(server *httptest.Server) *atomic.Int64 {
	opened := new(atomic.Int64)
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	return opened
}

// TestConnectionsAreReused checks that clients keep their connections unless the server closes them.
func TestConnectionsAreReused(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/rejected" {
			http.Error(w, "no", http.StatusForbidden)
		}
		if r.URL.Path == "/closes" {
			w.Header().Set("Connection", "close")
		}
	}))
	opened := countConnections(server)
	server.StartTLS()
	defer server.Close()
	target, err := bench.NewTarget(benchtest.Kubeconfig(t, server))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path string
		want int64
	}{{"/", 2}, {"/closes", 11}} { // one more in the warm-up
		opened.Store(0)
		if _, err := bench.Read(t.Context(), target, bench.ReadConfig{Path: c.path, Load: bench.Load{Operations: 10, Clients: 1}}); err != nil {
			t.Fatal(err)
		}
		if got := opened.Load(); got != c.want {
			t.Errorf("%s: %d connections, want %d", c.path, got, c.want)
		}
	}
	if _, err := bench.Read(t.Context(), target, bench.ReadConfig{Path: "/rejected", Load: bench.Load{Operations: 1, Clients: 1}}); err == nil || !strings.Contains(err.Error(), "403 Forbidden: no") {
		t.Errorf("a rejected warm-up: error %v", err)
	}
}

// TestReadOverPlainHTTP checks that a server without TLS can be measured.
func TestReadOverPlainHTTP(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("abc")) }))
	defer server.Close()
	target, err := bench.NewTarget(benchtest.Kubeconfig(t, server))
	if err != nil {
		t.Fatal(err)
	}
	result, err := bench.Read(t.Context(), target, bench.ReadConfig{Path: "/", Load: bench.Load{Operations: 3, Clients: 5}})
	if err != nil || result.Ops != 3 || result.Bytes != 9 {
		t.Errorf("got %+v, error %v", result, err)
	}
}

// TestReadFails checks that a server that does not run, and invalid configurations, are errors.
func TestReadFails(t *testing.T) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	path := benchtest.Kubeconfig(t, server)
	server.Close()
	target, err := bench.NewTarget(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]bench.ReadConfig{
		"no server":   {Path: "/", Load: bench.Load{Operations: 1, Clients: 1}},
		"no requests": {Path: "/", Load: bench.Load{Clients: 1}},
		"no clients":  {Path: "/", Load: bench.Load{Operations: 1}},
		"bad rate":    {Path: "/", Load: bench.Load{Operations: 1, Clients: 1, Rate: -1}},
	} {
		if _, err := bench.Read(t.Context(), target, c); err == nil {
			t.Errorf("%s: want an error", name)
		}
	}
	if _, err := bench.NewTarget("missing"); err == nil {
		t.Error("want an error for a missing kubeconfig")
	}
}

// TestWatchReportsEachDelivery checks that each delivery of a change to a watcher is counted once, although some
// watchers do not read.
func TestWatchReportsEachDelivery(t *testing.T) {
	for _, accept := range []string{bench.Protobuf, bench.JSON} {
		seed := bench.SeedConfig{Pods: 4, Namespaces: 2, Nodes: 2, Clients: 2}
		target, server := target(t, seed)
		config := bench.WatchConfig{
			Name: "watch", Path: "/api/v1/pods", Accept: accept, Watchers: 5, Stuck: 2,
			Objects: seed.PodPaths(4), Load: bench.Load{Operations: 20, Rate: 1000, Clients: 2},
		}
		for run := range 2 { // the second run changes the same objects
			result, err := bench.Watch(t.Context(), target, config)
			if err != nil {
				t.Fatal(err)
			}
			if result.Ops != 100 || result.Failures() != 0 || result.Latency.TotalCount() != 100 || result.Unit != "delivery" {
				t.Errorf("%s, run %d: got %d %ss, %d errors (%s); want 100 deliveries", accept, run, result.Ops, result.Unit, result.Errors, result.FirstError)
			}
			if p99, p999 := result.Value(bench.LateP99), result.Value(bench.LateP999); p99 > p999 || p999 > result.Quantile(100).Seconds() {
				t.Errorf("%s: deliveries came %g and %g s after the responses, and %v after they were due", accept, p99, p999, result.Quantile(100))
			}
			if result.BytesPerOp() < 1000 {
				t.Errorf("%s: a delivery has %d bytes, want a whole pod", accept, result.BytesPerOp())
			}
		}
		if got := server.Requests(http.MethodPatch); got != 40 {
			t.Errorf("%d patches, want 40", got)
		}
	}
}

// TestSlowReadersBesideWatches checks that slow readers read at the configured rate, and that watches get all changes
// meanwhile.
func TestSlowReadersBesideWatches(t *testing.T) {
	seed := bench.SeedConfig{Pods: 40, Namespaces: 1, Nodes: 1, Clients: 4}
	target, _ := target(t, seed)
	config := bench.SlowConfig{
		Name: "slow", Path: "/api/v1/pods", Accepts: []string{bench.Protobuf, bench.JSON}, Clients: 4, BytesPerSecond: 1 << 20,
		Watch: bench.WatchConfig{
			Name: "watch", Path: "/api/v1/pods", Accept: bench.Protobuf, Watchers: 3,
			Objects: seed.PodPaths(2), Load: bench.Load{Operations: 10, Rate: 1000, Clients: 1},
		},
	}
	results, err := bench.Slow(t.Context(), target, config)
	if err != nil {
		t.Fatal(err)
	}
	lists, deliveries := results[0], results[1]
	if lists.Ops != 4 || lists.Failures() != 0 || lists.BytesPerOp() < 40*1000 || lists.Server.PeakRSS == 0 {
		t.Errorf("got %d lists of %d bytes, %d errors (%s); want 4 whole ones and the server's memory", lists.Ops, lists.BytesPerOp(), lists.Errors, lists.FirstError)
	}
	// The rate limit allows one second's bytes and one read within the first second.
	if least := lists.Latency.Min(); least < int64(lists.BytesPerOp()-(128<<10))*1e6/(1<<20)/2 {
		t.Errorf("%d bytes took at least %d us, want the time of the rate limit", lists.BytesPerOp(), least)
	}
	if deliveries.Ops != 30 || deliveries.Failures() != 0 {
		t.Errorf("got %d deliveries, %d errors (%s); want 30", deliveries.Ops, deliveries.Errors, deliveries.FirstError)
	}
	config.BytesPerSecond = 0
	if _, err := bench.Slow(t.Context(), target, config); err == nil {
		t.Error("a rate limit of 0 was accepted")
	}
}

// TestSlowReadersReportTruncatedResponses requests a response that is cut off.
func TestSlowReadersReportTruncatedResponses(t *testing.T) {
	seed := bench.SeedConfig{Pods: 2, Namespaces: 1, Nodes: 1, Clients: 1}
	target, server := target(t, seed)
	server.BreaksOff = "/api/v1/broken"
	results, err := bench.Slow(t.Context(), target, bench.SlowConfig{
		Name: "slow", Path: "/api/v1/broken", Accepts: []string{bench.JSON}, Clients: 2, BytesPerSecond: 1 << 30,
		Watch: bench.WatchConfig{
			Name: "watch", Path: "/api/v1/pods", Accept: bench.Protobuf, Watchers: 1, Objects: seed.PodPaths(1), Load: bench.Load{Operations: 1, Clients: 1},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if results[0].Errors != 2 || !strings.Contains(results[0].FirstError, "EOF") {
		t.Errorf("%d errors (%s), want two truncated responses", results[0].Errors, results[0].FirstError)
	}
}

// TestWatchOfNodes checks the number of deliveries to watches that select the pods of one node each.
func TestWatchOfNodes(t *testing.T) {
	seed := bench.SeedConfig{Pods: 6, Namespaces: 1, Nodes: 3, Clients: 2}
	target, _ := target(t, seed)
	const watchers, changes = 4, 10 // node 0 has two watchers and 4 of the 10 changes
	want := seed.Deliveries(watchers, seed.Pods, changes)
	if want != 14 {
		t.Fatalf("%d deliveries expected, want 14", want)
	}
	result, err := bench.Watch(t.Context(), target, bench.WatchConfig{
		Path: "/api/v1/pods", Selections: seed.NodeSelections(seed.Nodes), Accept: bench.JSON, Watchers: watchers,
		Objects: seed.PodPaths(seed.Pods), Load: bench.Load{Operations: changes, Clients: 1}, Deliveries: want, PerChange: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	if result.Ops != changes || result.Failures() != 0 || result.Unit != "event" || result.Value("deliveries") != float64(want) {
		t.Errorf("got %d %ss, %d errors, %g deliveries; want %d events and %d deliveries", result.Ops, result.Unit, result.Errors, result.Value("deliveries"), changes, want)
	}
}

// TestWatchCountsWhatIsMissing checks that lost deliveries and failed changes count as errors.
func TestWatchCountsWhatIsMissing(t *testing.T) {
	seed := bench.SeedConfig{Pods: 2, Namespaces: 1, Nodes: 1, Clients: 1}
	target, server := target(t, seed)
	first := 0 // the first events are of seeding
	server.Drop = func(event int) bool {
		if first == 0 {
			first = event
		}
		return event == first+3
	}
	result, err := bench.Watch(t.Context(), target, bench.WatchConfig{
		Path: "/api/v1/pods", Accept: bench.JSON, Watchers: 3, Objects: seed.PodPaths(2), Load: bench.Load{Operations: 5, Clients: 1}, Patience: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	if result.Errors < 3 || !strings.Contains(result.FirstError, "not delivered") {
		t.Errorf("%d deliveries are missing (%s), want at least the 3 of the dropped event", result.Errors, result.FirstError)
	}
	// A failed change counts as one error, and affects nothing else.
	server.Drop = nil
	result, err = bench.Watch(t.Context(), target, bench.WatchConfig{
		Path: "/api/v1/pods", Accept: bench.JSON, Watchers: 3, Objects: append(seed.PodPaths(2), "/api/v1/namespaces/bench-0/pods/none"), Load: bench.Load{Operations: 5, Clients: 1},
	})
	if err != nil || result.Errors != 1 || result.Succeeded() != 12 || !strings.Contains(result.FirstError, "1 of 5 changes failed") {
		t.Errorf("%v: %d errors (%s), %d deliveries; want 1 and 12", err, result.Errors, result.FirstError, result.Succeeded())
	}
	if _, err := bench.Watch(t.Context(), target, bench.WatchConfig{
		Path: "/api/v1/pods", Accept: bench.JSON, Watchers: 1, Objects: []string{"/api/v1/namespaces/bench-0/pods/none"}, Load: bench.Load{Operations: 1, Clients: 1},
	}); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("changes of a missing object: error %v", err)
	}
}

// TestHeldWatchesThatEnd closes connections during the idle period.
func TestHeldWatchesThatEnd(t *testing.T) {
	t.Parallel()
	for name, streams := range protocols {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target, server := target(t, bench.SeedConfig{})
			if streams > 0 {
				target.UseHTTP2(streams)
			}
			var closing sync.WaitGroup
			defer closing.Wait()
			closing.Go(func() {
				tick := time.NewTicker(time.Millisecond)
				defer tick.Stop()
				for !strings.Contains(target.Progress(), ": idle: ") {
					select {
					case <-tick.C:
					case <-t.Context().Done():
						return
					}
				}
				server.CloseClientConnections()
			})
			const long = 10 * time.Second // enough for a busy machine to notice that they are closed
			held, err := bench.Hold(t.Context(), target, bench.HoldConfig{Path: "/api/v1/pods", Accept: bench.Protobuf, Watchers: 5, Idle: long})
			if err != nil {
				t.Fatal(err)
			}
			if held.Errors != 5 || !strings.Contains(held.FirstError, "a watch ended") {
				t.Errorf("%d errors (%s), want five watches that ended", held.Errors, held.FirstError)
			}
		})
	}
}

// TestHoldAndStorm checks that watches are held open, and that all are opened again after a disconnect.
func TestHoldAndStorm(t *testing.T) {
	target, server := target(t, bench.SeedConfig{})
	config := bench.HoldConfig{Name: "hold", Path: "/api/v1/pods", Accept: bench.Protobuf, Watchers: 20, Idle: 1}
	before := server.Requests(http.MethodGet)
	held, err := bench.Hold(t.Context(), target, config)
	if err != nil {
		t.Fatal(err)
	}
	if held.Ops != 20 || held.Failures() != 0 || held.Latency.TotalCount() != 20 {
		t.Errorf("held %d watches, %d errors; want 20", held.Ops, held.Errors)
	}
	if got := server.Requests(http.MethodGet) - before; got != 21 {
		t.Errorf("%d requests, want 20 watches and one for the revision", got)
	}
	storm, err := bench.Storm(t.Context(), target, config)
	if err != nil {
		t.Fatal(err)
	}
	if storm.Ops != 20 || storm.Failures() != 0 {
		t.Errorf("%d watches were opened again, %d errors; want 20", storm.Ops, storm.Errors)
	}
	if got := server.Requests(http.MethodGet) - before; got != 21+41 {
		t.Errorf("%d more requests, want 40 watches and one for the revision", got-21)
	}
}

// TestWatchList checks that each request waits until it has the expected number of initial objects.
func TestWatchList(t *testing.T) {
	seed := bench.SeedConfig{Pods: 10, Namespaces: 2, Nodes: 2, Clients: 2}
	target, _ := target(t, seed)
	for _, c := range []struct {
		path    string
		objects int
		errors  int
	}{{"/api/v1/pods", 10, 0}, {"/api/v1/namespaces/bench-1/pods", 5, 0}, {seed.NodeSelection(1), 5, 0}, {"/api/v1/pods", 11, 7}} {
		for _, accept := range []string{bench.Protobuf, bench.JSON} {
			result, err := bench.WatchList(t.Context(), target, bench.WatchListConfig{Path: c.path, Accept: accept, Load: bench.Load{Operations: 7, Clients: 3}, Objects: c.objects})
			if c.errors > 0 {
				if err == nil {
					t.Error("the warm-up found too few objects: want an error")
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if result.Ops != 7 || result.Errors != c.errors {
				t.Errorf("%s as %s: %d requests, %d errors (%s)", c.path, accept, result.Ops, result.Errors, result.FirstError)
			}
		}
	}
}

// TestWritesDeleteWhatTheyCreate checks that each verb has a result, and that no object is left.
func TestWritesDeleteWhatTheyCreate(t *testing.T) {
	target, server := target(t, bench.SeedConfig{})
	results, err := bench.Write(t.Context(), target, bench.WriteConfig{Namespace: "w", Load: bench.Load{Operations: 9, Clients: 3}})
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range results {
		if r.Name != bench.Verbs[i] || r.Ops != 9 || r.Failures() != 0 {
			t.Errorf("%s: %d, %d errors (%s)", r.Name, r.Ops, r.Errors, r.FirstError)
		}
	}
	for _, path := range server.Objects() {
		if strings.Contains(path, "configmaps") {
			t.Errorf("%s was not deleted", path)
		}
	}
}

// TestMixedKeepsProportions checks the number of requests of each kind.
func TestMixedKeepsProportions(t *testing.T) {
	seed := bench.SeedConfig{Pods: 20, Namespaces: 2, Nodes: 4, Clients: 4}
	target, _ := target(t, seed)
	results, err := bench.Mixed(t.Context(), target, bench.MixedConfig{Seed: seed, Load: bench.Load{Operations: 200, Clients: 4, Rate: 5000}})
	if err != nil {
		t.Fatal(err)
	}
	want := []int{200, 100, 40, 18, 2, 40}
	for i, r := range results {
		if r.Ops != want[i] || r.Failures() != 0 {
			t.Errorf("%s: %d, %d errors (%s); want %d", r.Name, r.Ops, r.Errors, r.FirstError, want[i])
		}
	}
}

// TestWorkloadsEndWithTheirContext checks that workloads return the error of a canceled context.
func TestWorkloadsEndWithTheirContext(t *testing.T) {
	seed := bench.SeedConfig{Pods: 1, Namespaces: 1, Nodes: 1, Clients: 1}
	target, server := target(t, seed)
	ctx, cancel := context.WithCancel(t.Context())
	server.Drop = func(int) bool { cancel(); return true }
	_, err := bench.Watch(ctx, target, bench.WatchConfig{Path: "/api/v1/pods", Accept: bench.JSON, Watchers: 2, Objects: seed.PodPaths(1), Load: bench.Load{Operations: 1000, Rate: 1, Clients: 1}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	server.Drop = func(int) bool { cancel(); return true }
	_, err = bench.Slow(ctx, target, bench.SlowConfig{
		Path: "/api/v1/pods", Accepts: []string{bench.JSON}, Clients: 2, BytesPerSecond: 1,
		Watch: bench.WatchConfig{Path: "/api/v1/pods", Accept: bench.JSON, Watchers: 1, Objects: seed.PodPaths(1), Load: bench.Load{Operations: 1, Clients: 1}},
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("slow readers: got %v, want the context's error", err)
	}
}

// TestComponentsHaveObjectsOfTheirOwn sends the writes of components twice. The second run must not use objects that
// the first one left.
func TestComponentsHaveObjectsOfTheirOwn(t *testing.T) {
	target, _ := target(t, bench.SeedConfig{})
	for range 2 {
		results, err := bench.Components(t.Context(), target, bench.ComponentsConfig{Namespace: "w", Nodes: 2, Load: bench.Load{Operations: 3, Clients: 2}})
		if err != nil || len(results) != len(bench.ComponentWrites()) {
			t.Fatalf("%d results, %v", len(results), err)
		}
		for _, r := range results {
			if r.Ops != 3 || r.Failures() != 0 {
				t.Errorf("%s: %d, %d errors (%s)", r.Name, r.Ops, r.Failures(), r.FirstError)
			}
		}
	}
}
