package consistency

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/larder-io/larder/internal/proctest"
)

var (
	rangesHandled = regexp.MustCompile(`(?m)^grpc_server_handled_total\{[^}]*grpc_code="OK"[^}]*grpc_method="Range"[^}]*\} (\S+)$`)
	revisionReads = regexp.MustCompile(`(?m)^larder_revision_reads_total\{[^}]*\} (\S+)$`)
)

// counter returns the value of a server's metric.
func counter(t *testing.T, client *http.Client, url string, name *regexp.Regexp) float64 {
	t.Helper()
	resp, err := client.Get(url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	found := name.FindSubmatch(body)
	if found == nil {
		t.Fatalf("invalid: %s has no metric %v", url, name)
	}
	n, err := strconv.ParseFloat(string(found[1]), 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestConsistentReadsWorkWhileEtcdIsSilent has many clients make consistent reads while etcd does not respond. Once it
// responds, one read of etcd must serve all waiting reads. If too few reads arrived in time, the test tries again.
func TestConsistentReadsWorkWhileEtcdIsSilent(t *testing.T) {
	const clients = 64
	c := newCluster(t, 1, 1)
	r := c.replicas[0]
	l := &load{cluster: c, compacted: new(atomic.Int64)}
	w := &client{load: l, random: rand.New(rand.NewPCG(1, 2))}
	at := w.force(t, configMaps, "o00", "a")
	plain := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	counters := func() [2]float64 {
		return [2]float64{counter(t, plain, c.urls[0], rangesHandled), counter(t, r.client, r.url, revisionReads)}
	}
	proctest.Eventually(t, "one read of etcd serves all", func() error {
		before := counters()
		c.network.sever(true, link{r.name, "m0"})
		var group sync.WaitGroup
		var served atomic.Int64
		for range clients {
			group.Go(func() {
				a := r.send(request{method: http.MethodGet, path: collection + "/o00", timeout: proctest.Patience})
				o, err := decode[object](a.body)
				if a.code == http.StatusOK && (err != nil || o.Metadata.revision() != at) {
					t.Errorf("GET: error %v, revision %d; want %d", err, o.Metadata.revision(), at)
				}
				if a.code == http.StatusOK {
					served.Add(1)
				}
			})
		}
		pause(t.Context(), 500*time.Millisecond)
		c.network.heal()
		group.Wait()
		after := counters()
		etcd, larder := after[0]-before[0], after[1]-before[1]
		t.Logf("%d of %d consistent reads were served; Larder counts %v reads of etcd, etcd %v", served.Load(), clients, larder, etcd)
		if served.Load() < clients || larder < 1 || larder > clients/8 || etcd > clients/4 { // etcd also counts other clients' reads
			return fmt.Errorf("%d of %d reads were served in %v", served.Load(), clients, after)
		}
		return nil
	})
}

// resident returns the resident memory of a process, 0 if there is no /proc.
func resident(t *testing.T, pid int) int {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(raw), "VmRSS:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// narrow returns a transport to a replica whose connections buffer only few bytes.
func narrow(r *replica, bytes int) *http.Transport {
	transport := r.client.Transport.(bearer).Clone()
	dialer := &net.Dialer{}
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, network, address)
		if tcp, ok := conn.(*net.TCPConn); ok {
			tcp.SetReadBuffer(bytes)
		}
		return conn, err
	}
	return transport
}

// TestStuckWatchersDelayNoOthers has watchers that never read. Other watchers must receive every event. The memory that
// stuck watchers take is limited, which is checked where /proc exists.
func TestStuckWatchersDelayNoOthers(t *testing.T) {
	const stuck, writes, most = 500, 150, 512 << 10
	c := newCluster(t, 1, 1)
	r := c.replicas[0]
	l := &load{cluster: c, compacted: new(atomic.Int64)}
	w := &client{load: l, random: rand.New(rand.NewPCG(1, 2))}
	start := w.force(t, configMaps, "o00", "a")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	transport := narrow(r, 4<<10)
	defer transport.CloseIdleConnections()
	watch := func(client *http.Client) *http.Response {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s%s?watch=1&resourceVersion=%d", r.url, collection, start), nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("watch: response %v, error %v", resp, err)
		}
		t.Cleanup(func() { resp.Body.Close() })
		return resp
	}
	for range stuck {
		watch(&http.Client{Transport: bearer{transport}})
	}
	healthy := watch(r.client)
	before := resident(t, r.PID())
	var got sync.WaitGroup
	events := 0
	got.Go(func() { events = countEvents(healthy.Body, writes) })
	padding := strings.Repeat("x", 16<<10)
	begun := time.Now()
	for i := range writes {
		body := fmt.Sprintf(`{"data":{"p":"(%d:a)","padding":%q}}`, i+1000, padding)
		a := r.send(request{method: http.MethodPatch, path: collection + "/o00", kind: "application/merge-patch+json", body: body, timeout: proctest.Patience})
		if a.code != http.StatusOK {
			t.Fatalf("write %d: %d %v %s", i, a.code, a.err, a.body)
		}
	}
	time.AfterFunc(proctest.Patience, cancel)
	got.Wait()
	each := (resident(t, r.PID()) - before) / stuck
	t.Logf("%d events in %v; a stuck watcher takes %d KiB", events, time.Since(begun), each>>10)
	if events != writes {
		t.Errorf("the healthy watcher got %d of %d events", events, writes)
	}
	if each > most {
		t.Errorf("a stuck watcher takes %d bytes, want at most %d", each, most)
	}
}

// countEvents reads at most most frames.
func countEvents(from io.Reader, most int) (n int) {
	buffer := make([]byte, 64<<10)
	for n < most {
		read, err := from.Read(buffer)
		n += strings.Count(string(buffer[:read]), "\n")
		if err != nil {
			return n
		}
	}
	return n
}
