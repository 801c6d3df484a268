package httpapi

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/internal/proctest"
)

// BenchmarkWatchNodes measures events from the store to the sockets of 1,000 watches. Each watches one node's pods
// and matches one event in a thousand. Events come as fast as possible, and at a pace at which the process sleeps
// between events. The clients discard their bytes without decrypting them; the cost of that is not counted.
func BenchmarkWatchNodes(b *testing.B) {
	for _, bench := range []struct {
		name string
		pace time.Duration
	}{{"burst", 0}, {"400 a second", 2500 * time.Microsecond}} {
		b.Run(bench.name, func(b *testing.B) {
			n := newNodeWatches(b, 1000)
			n.round(b, n.watches(), 0) // grows buffers
			var used time.Duration
			b.ReportAllocs()
			b.ResetTimer()
			for left := b.N; left > 0; left -= n.watches() {
				used += n.round(b, min(left, n.watches()), bench.pace)
			}
			b.ReportMetric(float64(used.Nanoseconds())/float64(b.N), "cpu-ns/op")
		})
	}
}

// nodeWatches are open watches, and a pod on the node of each.
type nodeWatches struct {
	*pair
	sockets []syscall.RawConn
	pods    [][]byte
	events  func() uint64 // that the hub has read
	change  int
}

// changeMark begins the part of a pod that changes.
const changeMark = "change-00000000"

func newNodeWatches(b *testing.B, nodes int) *nodeWatches {
	n := &nodeWatches{pair: newPair(b)}
	pods := n.ours.registry.Endpoint(schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "").View.Resource
	n.events = func() uint64 { return pods.Hub.Stats().Events }
	template := n.template(b)
	for i := range nodes {
		n.pods = append(n.pods, bytes.ReplaceAll(template, []byte("-0000"), fmt.Appendf(nil, "-%04d", i)))
	}
	revision := int64(0)
	for i := range n.pods {
		revision = n.put(i)
	}
	proctest.Eventually(b, "the hub has read all", func() error {
		if read := n.events(); read < uint64(nodes) {
			return fmt.Errorf("got %d events of %d", read, nodes)
		}
		return nil
	})
	for i := range nodes {
		c := n.dial(b)
		fmt.Fprintf(c, "GET /api/v1/pods?watch=1&resourceVersion=%d&fieldSelector=spec.nodeName%%3Dnode-%04d HTTP/1.1\r\nHost: h\r\nAccept: application/vnd.kubernetes.protobuf\r\n\r\n", revision, i)
		if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || !strings.Contains(line, "200") {
			b.Fatal(line, err)
		}
		raw, err := c.NetConn().(syscall.Conn).SyscallConn()
		if err != nil {
			b.Fatal(err)
		}
		n.sockets = append(n.sockets, raw)
	}
	return n
}

// template returns pod-0000 of node-0000 as it is stored.
func (n *nodeWatches) template(b *testing.B) []byte {
	pod := map[string]any{
		"metadata": map[string]any{
			"name": "pod-0000", "labels": map[string]any{"app": "web", "pod-template-hash": "6d4cf56db6"},
			"annotations": map[string]any{"change": changeMark, "text": strings.Repeat("text ", 800)},
		},
		"spec": map[string]any{"nodeName": "node-0000", "containers": []any{map[string]any{"name": "c", "image": "registry.example.com/team/web:1.2.3"}}},
	}
	body, err := json.Marshal(pod)
	if err != nil {
		b.Fatal(err)
	}
	n.ours.must(b, post("/api/v1/namespaces", `{"metadata":{"name":"default"}}`))
	n.ours.must(b, post("/api/v1/namespaces/default/serviceaccounts", `{"metadata":{"name":"default"}}`))
	n.ours.must(b, post("/api/v1/namespaces/default/pods", string(body)))
	item, found, _, err := n.store.Get(b.Context(), "/registry/pods/default/pod-0000")
	if err != nil || !found {
		b.Fatal(found, err)
	}
	return item.Value
}

func (n *nodeWatches) watches() int { return len(n.sockets) }

// put writes the next change of pod i to the store, and returns the revision.
func (n *nodeWatches) put(i int) int64 {
	n.change++
	pod := bytes.Replace(n.pods[i], []byte(changeMark), fmt.Appendf(nil, "change-%08d", n.change), 1)
	return n.store.PutAll(map[string][]byte{fmt.Sprintf("/registry/pods/default/pod-%04d", i): pod})
}

// round makes so many changes, of a pod each, and returns the CPU time until all watches
// rest again.
func (n *nodeWatches) round(b *testing.B, changes int, pace time.Duration) time.Duration {
	goal := n.events() + uint64(changes)
	before, start := proctest.OfProcess.Now(b), time.Now()
	tick := time.NewTicker(50 * time.Microsecond)
	defer tick.Stop()
	for i := range changes {
		for time.Since(start) < time.Duration(i)*pace {
			<-tick.C
		}
		n.put(i)
	}
	for busy := 1; n.events() < goal || busy > 0; _, busy = openStreams(n.streams) {
		<-tick.C
	}
	used := proctest.OfProcess.Now(b) - before
	b.StopTimer()
	defer b.StartTimer()
	trash := make([]byte, 64<<10)
	for i, socket := range n.sockets {
		if drained := drainSocket(b, socket, trash); i < changes && drained < len(n.pods[i]) {
			b.Fatalf("%d bytes reached watch %d", drained, i)
		}
	}
	return used
}

// drainSocket discards the bytes that have arrived and returns their number.
func drainSocket(b *testing.B, socket syscall.RawConn, trash []byte) (size int) {
	err := socket.Read(func(fd uintptr) bool {
		for {
			n, err := unix.Read(int(fd), trash)
			if n <= 0 || err != nil {
				return true
			}
			size += n
		}
	})
	if err != nil {
		b.Fatal(err)
	}
	return size
}
