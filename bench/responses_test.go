package bench_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/benchtest"
)

// protocols are the protocols that each workload can use.
var protocols = map[string]int{"HTTP/1.1": 0, "HTTP/2": 3}

// serving starts a server of both protocols and returns it as a Target that uses streams.
func serving(t *testing.T, streams int, handler http.HandlerFunc) *bench.Target {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	target, err := bench.NewTarget(benchtest.Kubeconfig(t, server))
	if err != nil {
		t.Fatal(err)
	}
	if streams > 0 {
		target.UseHTTP2(streams)
	}
	return target
}

// patiently calls try with increasing timeouts until it returns true: on a busy machine, even responses that the test
// does not delay may be late.
func patiently(t *testing.T, try func(timeout time.Duration) (punctual bool)) {
	t.Helper()
	for _, timeout := range []time.Duration{3 * time.Second, 15 * time.Second, time.Minute} {
		if try(timeout) {
			return
		}
		t.Logf("responses that the test does not delay took %v", timeout)
	}
	t.Error("responses that the test does not delay are late")
}

// TestTimeoutsAreCountedSeparately has one response that never begins and one that never ends.
func TestTimeoutsAreCountedSeparately(t *testing.T) {
	t.Parallel()
	for name, streams := range protocols {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			patiently(t, func(timeout time.Duration) bool {
				var requests atomic.Int64
				target := serving(t, streams, func(w http.ResponseWriter, r *http.Request) {
					switch requests.Add(1) {
					case 4:
						<-r.Context().Done()
					case 6:
						w.Write([]byte("begins"))
						w.(http.Flusher).Flush()
						<-r.Context().Done()
					case 8:
						w.WriteHeader(http.StatusInternalServerError)
					}
				})
				target.Timeout = timeout
				r, err := bench.Read(t.Context(), target, bench.ReadConfig{Path: "/", Load: bench.Load{Operations: 20, Clients: 1}})
				if errors.Is(err, bench.ErrTimeout) || err == nil && r.Timeouts > 2 {
					return false
				}
				if err != nil {
					t.Fatal(err)
				}
				if r.Ops != 20 || r.Timeouts != 2 || r.Errors != 1 || r.Refused != 0 || r.Latency.TotalCount() != 17 || r.Protocol != name {
					t.Errorf("%d operations, %d timeouts, %d errors, %d refused, %d latencies by %s (%s); want 20, 2, 1, 0 and 17", r.Ops, r.Timeouts, r.Errors, r.Refused, r.Latency.TotalCount(), r.Protocol, r.FirstError)
				}
				if !strings.Contains(r.FirstError, "timeout after "+timeout.String()) {
					t.Errorf("the first error is %q, want a timeout", r.FirstError)
				}
				if want := map[int]int{200: 18, 500: 1}; !reflect.DeepEqual(r.Statuses, want) { // the response that does not end has begun
					t.Errorf("statuses %v, want %v", r.Statuses, want)
				}
				return true
			})
		})
	}
}

// TestTimeoutsOfWatches has a server that does not respond to a watch, and one that never completes the initial
// objects.
func TestTimeoutsOfWatches(t *testing.T) {
	t.Parallel()
	for name, streams := range protocols {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			patiently(t, func(timeout time.Duration) bool {
				var watches atomic.Int64
				target := serving(t, streams, func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Query().Get("watch") != "true" {
						fmt.Fprint(w, `{"metadata":{"resourceVersion":"7"}}`)
						return
					}
					switch watches.Add(1) {
					case 1: // the warm-up
						fmt.Fprintln(w, `{"type":"BOOKMARK","object":{"metadata":{"annotations":{"k8s.io/initial-events-end":"true"}}}}`)
						return
					case 2:
					default:
						w.(http.Flusher).Flush()
					}
					<-r.Context().Done()
				})
				target.Timeout = timeout
				r, err := bench.WatchList(t.Context(), target, bench.WatchListConfig{Path: "/api/v1/pods", Accept: bench.JSON, Load: bench.Load{Operations: 2, Clients: 1}})
				if errors.Is(err, bench.ErrTimeout) { // in the warm-up
					return false
				}
				if err != nil {
					t.Fatal(err)
				}
				if r.Ops != 2 || r.Timeouts != 2 || r.Errors != 0 {
					t.Errorf("%d operations, %d timeouts, %d errors (%s); want 2 timeouts", r.Ops, r.Timeouts, r.Errors, r.FirstError)
				}
				return true
			})
		})
	}
}

// TestRejectionsAreCountedSeparately has a server that rejects some requests with 429. The client retries them only
// with RetryAfter.
func TestRejectionsAreCountedSeparately(t *testing.T) {
	for name, streams := range protocols {
		for _, again := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, retries %t", name, again), func(t *testing.T) {
				var requests atomic.Int64
				target := serving(t, streams, func(w http.ResponseWriter, _ *http.Request) {
					if n := requests.Add(1); n == 3 || n == 4 || n == 7 {
						w.Header().Set("Retry-After", "0")
						w.WriteHeader(http.StatusTooManyRequests)
						fmt.Fprint(w, `{"kind":"Status","message":"try again later"}`)
					}
				})
				target.RetryAfter = again
				r, err := bench.Read(t.Context(), target, bench.ReadConfig{Path: "/", Load: bench.Load{Operations: 10, Clients: 1}})
				if err != nil {
					t.Fatal(err)
				}
				refused, retries, statuses := 3, 0, map[int]int{200: 7, 429: 3}
				if again {
					refused, retries, statuses = 0, 3, map[int]int{200: 10, 429: 3}
				}
				if r.Ops != 10 || r.Errors != 0 || r.Refused != refused || r.Retries != retries || !reflect.DeepEqual(r.Statuses, statuses) {
					t.Errorf("%d operations, %d errors, %d refused, %d retried, statuses %v; want 10, 0, %d, %d, %v", r.Ops, r.Errors, r.Refused, r.Retries, r.Statuses, refused, retries, statuses)
				}
				if !again && !strings.HasSuffix(r.FirstError, "429 Too Many Requests: try again later") {
					t.Errorf("the first error is %q", r.FirstError)
				}
			})
		}
	}
}

// TestEveryWorkloadUsesBothProtocols runs each workload with each protocol, and checks which protocol the server saw.
func TestEveryWorkloadUsesBothProtocols(t *testing.T) {
	seed := bench.SeedConfig{Pods: 4, Namespaces: 2, Nodes: 2, Clients: 2}
	watch := bench.WatchConfig{Path: "/api/v1/pods", Accept: bench.Protobuf, Watchers: 3, Stuck: 2, Objects: seed.PodPaths(2), Load: bench.Load{Operations: 4, Rate: 1000, Clients: 2}}
	hold := bench.HoldConfig{Path: "/api/v1/pods", Accept: bench.Protobuf, Watchers: 7}
	only := func(r *bench.Result, err error) ([]*bench.Result, error) { return []*bench.Result{r}, err }
	workloads := []struct {
		name string
		run  func(target *bench.Target) ([]*bench.Result, error)
	}{
		{"seed", func(to *bench.Target) ([]*bench.Result, error) { return only(bench.Seed(t.Context(), to, seed)) }},
		{"read", func(to *bench.Target) ([]*bench.Result, error) {
			return only(bench.Read(t.Context(), to, bench.ReadConfig{Path: "/api/v1/pods", Load: bench.Load{Operations: 9, Clients: 3}}))
		}},
		{"watchlist", func(to *bench.Target) ([]*bench.Result, error) {
			return only(bench.WatchList(t.Context(), to, bench.WatchListConfig{Path: "/api/v1/pods", Accept: bench.JSON, Load: bench.Load{Operations: 7, Clients: 4}, Objects: 4}))
		}},
		{"watch", func(to *bench.Target) ([]*bench.Result, error) { return only(bench.Watch(t.Context(), to, watch)) }},
		{"hold", func(to *bench.Target) ([]*bench.Result, error) { return only(bench.Hold(t.Context(), to, hold)) }},
		{"storm", func(to *bench.Target) ([]*bench.Result, error) { return only(bench.Storm(t.Context(), to, hold)) }},
		{"write", func(to *bench.Target) ([]*bench.Result, error) {
			return bench.Write(t.Context(), to, bench.WriteConfig{Namespace: "w", Load: bench.Load{Operations: 5, Clients: 4}})
		}},
		{"patch", func(to *bench.Target) ([]*bench.Result, error) {
			return only(bench.Patch(t.Context(), to, "patch", seed.PodPaths(4), bench.Load{Operations: 8, Clients: 2}))
		}},
		{"mixed", func(to *bench.Target) ([]*bench.Result, error) {
			return bench.Mixed(t.Context(), to, bench.MixedConfig{Seed: seed, Load: bench.Load{Operations: 50, Clients: 4}})
		}},
		{"slow", func(to *bench.Target) ([]*bench.Result, error) {
			return bench.Slow(t.Context(), to, bench.SlowConfig{Path: "/api/v1/pods", Accepts: []string{bench.JSON}, Clients: 4, BytesPerSecond: 1 << 30, Watch: watch})
		}},
		{"custom", func(to *bench.Target) ([]*bench.Result, error) {
			return bench.Custom(t.Context(), to, bench.CustomConfig{Resource: "workers", Objects: 4, Namespaces: 2, Changes: 4, Clients: 2})
		}},
	}
	for name, streams := range protocols {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			requests := make(map[string]int) // guarded by mu: requests by protocol
			objects := benchtest.New()
			defer objects.Close()
			target := serving(t, streams, func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				requests[strings.TrimSuffix(r.Proto, ".0")]++
				mu.Unlock()
				objects.ServeHTTP(w, r)
			})
			for _, w := range workloads {
				mu.Lock()
				clear(requests)
				mu.Unlock()
				results, err := w.run(target)
				if err != nil {
					t.Fatalf("%s: %v", w.name, err)
				}
				mu.Lock()
				if len(requests) != 1 || requests[name] == 0 {
					t.Errorf("%s: requests by protocol %v, want all by %s", w.name, requests, name)
				}
				mu.Unlock()
				for _, r := range results {
					if r.Failures() > 0 || r.Protocol != name && !r.Part {
						t.Errorf("%s: %s: %d failures (%s) by %s", w.name, r.Name, r.Failures(), r.FirstError, r.Protocol)
					}
				}
			}
		})
	}
}
