package httpapi

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"net"
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
	stuck := 3 * p.streams.Stats().AtOnce
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
	for i := 0; p.streams.Stats().Busy < stuck; i++ { // the kernel takes some, then writes wait
		p.ours.must(t, put(configmaps+"/one", configmap("one", "", fmt.Sprint(value, i))))
		expect(t, in, "MODIFIED one")
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

// TestIdleWatchesRest checks that idle watches keep no goroutine, except the few that all share.
func TestIdleWatchesRest(t *testing.T) {
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
			if busy := p.streams.Stats().Busy; busy > 0 {
				return fmt.Errorf("%d are not", busy)
			}
			return nil
		})
		if idle := idleGoroutines(t, p.streams); idle > 2 {
			t.Errorf("%d goroutines wait for work", idle)
		}
	}
	p.streams.End()
	p.streams.Wait(t.Context())
	if idle := idleGoroutines(t, p.streams); idle != 0 {
		t.Errorf("%d goroutines wait for work that never comes", idle)
	}
}

// idleGoroutines returns how many goroutines wait for work, once none works.
func idleGoroutines(t *testing.T, ss *streams.Streams) (idle int) {
	t.Helper()
	proctest.Eventually(t, "no goroutine serves watches", func() error {
		now := ss.Stats()
		if idle = now.Idle; now.Running > 0 {
			return fmt.Errorf("%d do", now.Running)
		}
		return nil
	})
	return idle
}
