package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/registrytest"
)

var (
	stormClients = flag.Int("storm.clients", 16, "clients that list at once in TestListStorm")
	stormBytes   = flag.Int("storm.bytes", 12<<20, "size of each list in TestListStorm")
)

// stormForms are the media types that the clients of a storm request in turn.
var stormForms = []string{
	"application/json",
	"application/vnd.kubernetes.protobuf",
	"application/json;as=Table;v=v1;g=meta.k8s.io",
	"application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
	"application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
}

// storm is a server whose encodings do not all fit, with clients that read slowly.
type storm struct {
	*side
	addr   string
	config *tls.Config
}

func newStorm(t *testing.T) *storm {
	t.Helper()
	back := registrytest.New(t, nil, func(c *registry.Config) { c.CacheBytes = int64(*stormBytes) / 2 })
	f := serveBack(t, back)
	st := &storm{addr: f.addr, config: &tls.Config{RootCAs: f.pool}}
	client := st.client()
	t.Cleanup(client.CloseIdleConnections)
	st.side = f.side(t, back, client.Transport)
	return st
}

// client returns a client with its own connection, which buffers little until the test reads.
func (st *storm) client() *http.Client {
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		if tcp, ok := c.(*net.TCPConn); ok {
			err = tcp.SetReadBuffer(128 << 10) // twice what loopback sends at once
		}
		return c, err
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: st.config, DisableCompression: true, DialContext: dial}}
}

// get begins to read a path.
func (st *storm) get(t *testing.T, path, accept string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", "https://"+st.addr+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", accept)
	client := st.client()
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		resp.Body.Close()
		client.CloseIdleConnections()
	})
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s as %s: got %s, want 200", path, accept, resp.Status)
	}
	return resp
}

// live returns the size of the heap after a collection.
func live() int64 {
	runtime.GC()
	runtime.GC() // the first collection moves objects of a sync.Pool to its victim cache, the second frees them
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestListStorm checks that however many clients read large lists slowly, they share memory and get complete,
// unchanged lists, and that watches continue.
func TestListStorm(t *testing.T) {
	st := newStorm(t)
	const objects = 200
	st.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"a"}}`))
	half := strings.Repeat("0123456789", *stormBytes/objects/20)
	for i := range objects {
		st.must(t, post(configmaps, fmt.Sprintf(`{"metadata":{"name":"c%04d","annotations":{"a":"%s"}},"data":{"k":"%s"}}`, i, half, half)))
	}
	watched := st.get(t, configmaps+"?watch=1&resourceVersion=0", "application/json")
	ended := make(chan error, 1)
	go func() { ended <- follow(watched.Body, objects) }()
	path := configmaps + "?resourceVersion=0"
	want := map[string][]byte{}
	for _, accept := range stormForms {
		want[accept] = st.must(t, call{method: "GET", path: path, header: map[string]string{"Accept": accept}}).body
	}
	before := live()
	slow := make([]*http.Response, *stormClients)
	for i := range slow {
		slow[i] = st.get(t, path, stormForms[i%len(stormForms)])
	}
	// No client reads. Deleting the objects removes their bytes from the cache.
	for i := range objects {
		st.must(t, call{method: "DELETE", path: fmt.Sprintf("%s/c%04d", configmaps, i)})
	}
	if grown := live() - before; grown > int64(*stormBytes)*2+int64(*stormClients)<<19 {
		t.Errorf("%d slow readers of %d bytes hold %d bytes, want memory that they share", len(slow), *stormBytes, grown)
	} else {
		t.Logf("%d slow readers of %d bytes hold %d bytes", len(slow), *stormBytes, grown)
	}
	var all sync.WaitGroup
	for i, resp := range slow {
		all.Go(func() {
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Errorf("list %d: %v", i, err)
				return
			}
			accept := stormForms[i%len(stormForms)]
			if whole := want[accept]; !bytes.Equal(body, whole) && !strings.Contains(accept, "as=Table") || resp.ContentLength >= 0 && len(body) != int(resp.ContentLength) {
				t.Errorf("list %d: got %d bytes, want %d, with Content-Length %d", i, len(body), len(whole), resp.ContentLength)
			}
		})
	}
	all.Wait()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// follow reads a watch with events of n objects that are created and deleted.
func follow(body io.Reader, n int) error {
	in := bufio.NewReader(body)
	for i := range 2 * n {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return fmt.Errorf("the watch ended after %d events: %w", i, err)
		}
		want := []byte(`{"type":"ADDED"`)
		if i >= n {
			want = []byte(`{"type":"DELETED"`)
		}
		if !bytes.HasPrefix(line, want) {
			return fmt.Errorf("event %d is %.40s, want %s", i, line, want)
		}
	}
	return nil
}
