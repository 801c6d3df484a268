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

var rangesHandled = regexp.MustCompile(`(?m)^grpc_server_handled_total\{[^}]*grpc_code="OK"[^}]*grpc_method="Range"[^}]*\} (\S+)$`)

// ranges is how many reads a member of etcd says it has answered.
func ranges(t *testing.T, url string) float64 {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	found := rangesHandled.FindSubmatch(body)
	if found == nil {
		t.Fatalf("invalid: etcd does not count its reads")
	}
	n, err := strconv.ParseFloat(string(found[1]), 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestSharedReads has many clients read consistently at the same time: one read of
// etcd serves all who wait.
func TestSharedReads(t *testing.T) {
	const clients, each = 64, 30
	c := newCluster(t, 1, 1)
	l := &load{cluster: c, compacted: new(atomic.Int64)}
	w := &client{load: l, random: rand.New(rand.NewPCG(1, 2))}
	at := w.force(t, "o00", "a")
	before := ranges(t, c.urls[0])
	var group sync.WaitGroup
	for range clients {
		group.Go(func() {
			for range each {
				a := c.replicas[0].ask(request{method: http.MethodGet, path: collection + "/o00"})
				o, err := decode[object](a.body)
				if a.code != http.StatusOK || err != nil || o.Metadata.revision() != at {
					t.Errorf("GET: %d %v %v, at %d; want %d", a.code, a.err, err, o.Metadata.revision(), at)
					return
				}
			}
		})
	}
	group.Wait()
	reads := ranges(t, c.urls[0]) - before
	t.Logf("%d consistent reads cost etcd %v", clients*each, reads)
	if reads < 1 || reads > clients*each/4 {
		t.Errorf("etcd answered %v reads for %d clients that read %d times each", reads, clients, each)
	}
}

// resident is the memory of a process.
func resident(t *testing.T, pid int) int {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Skipf("this system does not tell a process's memory: %v", err)
	}
	_, rest, _ := strings.Cut(string(raw), "VmRSS:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// TestStuckWatchers has watchers that never read: the others get everything, and what
// the stuck ones keep is bounded.
func TestStuckWatchers(t *testing.T) {
	const stuck, writes, most = 500, 150, 512 << 10
	c := newCluster(t, 1, 1)
	r := c.replicas[0]
	l := &load{cluster: c, compacted: new(atomic.Int64)}
	w := &client{load: l, random: rand.New(rand.NewPCG(1, 2))}
	start := w.force(t, "o00", "a")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	dialer := &net.Dialer{}
	transport := r.client.Transport.(bearer).Clone()
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, network, address)
		if tcp, ok := conn.(*net.TCPConn); ok {
			tcp.SetReadBuffer(4096)
		}
		return conn, err
	}
	defer transport.CloseIdleConnections()
	watch := func(client *http.Client) *http.Response {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s%s?watch=1&resourceVersion=%d", r.url, collection, start), nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("watch: %v %v", resp, err)
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
		body := fmt.Sprintf(`{"data":{"p":"<%d:a>","padding":%q}}`, i+1000, padding)
		a := r.ask(request{method: http.MethodPatch, path: collection + "/o00", kind: "application/merge-patch+json", body: body})
		if a.code != http.StatusOK {
			t.Fatalf("write %d: %d %v %s", i, a.code, a.err, a.body)
		}
	}
	time.AfterFunc(proctest.Patience, cancel)
	got.Wait()
	each := (resident(t, r.PID()) - before) / stuck
	t.Logf("%d events in %v; a stuck watcher costs %d KiB", events, time.Since(begun), each>>10)
	if events != writes {
		t.Errorf("the healthy watcher got %d of %d events", events, writes)
	}
	if each > most {
		t.Errorf("a stuck watcher keeps %d bytes, more than %d", each, most)
	}
}

// countEvents reads frames until there were as many as asked for, or the end.
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
