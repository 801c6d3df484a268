package httpapi

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"net"
	"runtime"
	"strings"
	"testing"

	"github.com/larder-io/larder/httpapi/streams"
	"github.com/larder-io/larder/internal/proctest"
)

// TestWatchesShareTurns checks that a watch gets its events although more clients than there are scheduler goroutines
// do not read theirs.
func TestWatchesShareTurns(t *testing.T) {
	p := newPair(t)
	p.ours.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"a"}}`))
	stuck := 3 * max(runtime.GOMAXPROCS(0), 2) // thrice the goroutines that may run watches
	for range stuck {
		c := p.dialNarrow(t)
		fmt.Fprintf(c, "GET %s?watch=1&resourceVersion=1 HTTP/1.1\r\nHost: h\r\n\r\n", configmaps)
		if line, err := bufio.NewReaderSize(c, 16).ReadString('\n'); err != nil || !strings.Contains(line, "200") {
			t.Fatalf("status line is %q, error %v, want 200", line, err)
		}
	}
	_, in := p.openWatch(t, configmaps+"?watch=1&resourceVersion=1", "application/json")
	p.ours.must(t, post(configmaps, configmap("one", "", "")))
	expect(t, in, "ADDED one")
	value := strings.Repeat("x", 900_000)
	busy := 0
	for i := 0; busy < stuck; i++ { // the kernel buffers some bytes, then writes block
		p.ours.must(t, put(configmaps+"/one", configmap("one", "", fmt.Sprint(value, i))))
		expect(t, in, "MODIFIED one")
		_, busy = openStreams(p.streams)
	}
	p.ours.must(t, del(configmaps+"/one"))
	expect(t, in, "DELETED one")
}

// dialNarrow opens a connection that buffers little until the test reads.
func (f *running) dialNarrow(t testing.TB) *tls.Conn {
	t.Helper()
	raw, err := net.Dial("tcp", f.addr)
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	c := tls.Client(raw, &tls.Config{RootCAs: f.pool, ServerName: "127.0.0.1"})
	t.Cleanup(func() { c.Close() })
	return c
}

// TestIdleWatchesHaveNoGoroutines checks that idle watches have no goroutines, except the few that all share.
func TestIdleWatchesHaveNoGoroutines(t *testing.T) {
	p := newPair(t)
	p.ours.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"a"}}`))
	var ins []*bufio.Reader
	for range 5 {
		_, in := p.openWatch(t, configmaps+"?watch=1&resourceVersion=1", "application/json")
		ins = append(ins, in)
	}
	for i := range 3 {
		name := fmt.Sprint("c", i)
		p.ours.must(t, post(configmaps, configmap(name, "", "")))
		for _, in := range ins {
			expect(t, in, "ADDED "+name)
		}
		proctest.Eventually(t, "all watches are parked", func() error {
			if _, busy := openStreams(p.streams); busy > 0 {
				return fmt.Errorf("got %d that are not", busy)
			}
			return nil
		})
		awaitSchedulers(t, 2)
	}
	p.streams.End()
	p.streams.Wait(t.Context())
	awaitSchedulers(t, 0)
}

// awaitSchedulers waits until at most n goroutines run watches or wait for them.
func awaitSchedulers(t *testing.T, n int) {
	t.Helper()
	proctest.Eventually(t, fmt.Sprintf("at most %d goroutines run watches", n), func() error {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		if got := bytes.Count(stacks, []byte("streams.(*scheduler).run(")); got > n {
			return fmt.Errorf("got %d", got)
		}
		return nil
	})
}

// openStreams counts the open streams, and the watches among them that are not parked.
func openStreams(ss *streams.Streams) (open, busy int) {
	for s := range ss.All() {
		open++
		if s.Busy {
			busy++
		}
	}
	return open, busy
}
