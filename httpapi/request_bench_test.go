package httpapi

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/larder-io/larder/httpapi/request"
	"github.com/larder-io/larder/internal/proctest"
)

// echoConn is a client that repeats one request and discards the responses.
type echoConn struct {
	request string
	at      int
	wrote   int
	writes  int
	first   []byte // of the last response
}

func (c *echoConn) Read(p []byte) (int, error) {
	n := copy(p, c.request[c.at:])
	c.at = (c.at + n) % len(c.request)
	return n, nil
}

func (c *echoConn) Write(p []byte) (int, error) {
	c.first = append(c.first[:0], p[:min(len(p), 16)]...)
	c.wrote += len(p)
	c.writes++
	return len(p), nil
}

func (c *echoConn) Close() error                     { return nil }
func (c *echoConn) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (c *echoConn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (c *echoConn) SetDeadline(time.Time) error      { return nil }
func (c *echoConn) SetReadDeadline(time.Time) error  { return nil }
func (c *echoConn) SetWriteDeadline(time.Time) error { return nil }

// repeat returns a function that serves one request for path, from its bytes to the response's bytes, on its own
// connection.
func repeat(t testing.TB, s *Server, path, accept string) (serve func(), c *echoConn) {
	c = &echoConn{request: "GET " + path + " HTTP/1.1\r\nHost: localhost:6443\r\nUser-Agent: larder/test\r\n" +
		"Accept: " + accept + "\r\nAuthorization: Bearer " + strings.Repeat("t", 900) + "\r\n\r\n"}
	ss := s.http1.Session(c)
	serve = func() {
		if _, again := ss.ServeNext(); !again || !bytes.HasPrefix(c.first, []byte("HTTP/1.1 200 OK")) && c.writes == 1 {
			t.Fatalf("respond to %s: %q", path, c.first)
		}
	}
	serve()
	return serve, c
}

// newReadServer serves n ConfigMaps of size bytes in the namespace a and ten in b, and requires tokens.
func newReadServer(t testing.TB, n, size int) *pair {
	who := &authenticator.Response{User: &user.DefaultInfo{Name: "ann", Groups: []string{"dev", user.AllAuthenticated}}}
	p := newPairWith(t, func(c *Config) {
		c.Authenticator = authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) { return who, true, nil })
	})
	for namespace, n := range map[string]int{"a": n, "b": 10} {
		p.ours.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"`+namespace+`"}}`))
		for i := range n {
			p.ours.must(t, post("/api/v1/namespaces/"+namespace+"/configmaps",
				fmt.Sprintf(`{"metadata":{"name":"c%d","labels":{"ten":"%t"}},"data":{"k":"%s"}}`, i, i < 10, strings.Repeat("v", size))))
		}
	}
	return p
}

const tenOfMany = "&labelSelector=ten%3Dtrue"

// TestReadsAllocateNothingPerItem checks that a list of a thousand objects allocates hardly more often than one of ten,
// and a GET only a few times.
func TestReadsAllocateNothingPerItem(t *testing.T) {
	if proctest.RaceDetector {
		t.Skip("sync.Pool drops items at random with the race detector")
	}
	p := newReadServer(t, 1000, 100)
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // it empties pools
	least := func(path, accept string) float64 {
		serve, _ := repeat(t, p.Server, path, accept)
		allocs := testing.AllocsPerRun(20, serve)
		for range 9 { // other goroutines allocate too
			allocs = min(allocs, testing.AllocsPerRun(20, serve))
		}
		return allocs
	}
	const metadata = runtime.ContentTypeProtobuf + ";as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
	for _, c := range []struct{ query, accept string }{
		{"?resourceVersion=0", runtime.ContentTypeProtobuf}, {"", runtime.ContentTypeProtobuf},
		{"?labelSelector=kind%21%3Dother", runtime.ContentTypeProtobuf}, {"", runtime.ContentTypeJSON}, {"", metadata},
	} {
		many, few := least(configmaps+c.query, c.accept), least("/api/v1/namespaces/b/configmaps"+c.query, c.accept)
		if many > few+2 { // a buffer may grow once more
			t.Errorf("%q: a list of 1,000 allocates %v times, one of 10 %v times", c, many, few)
		}
	}
	if get := least(configmaps+"/c1?resourceVersion=0", runtime.ContentTypeProtobuf); get > maxGetAllocations {
		t.Errorf("got %v allocations of a GET, want at most %d", get, maxGetAllocations)
	} else {
		t.Logf("a GET allocates %v times", get)
	}
}

// maxGetAllocations is the number of allocations that a GET may make: the exchange, its context with a timer, its
// method, target and audit ID, the name of its client, and the key of the object.
const maxGetAllocations = 16

// TestSmallResponsesAreOneWrite checks that header and body of a small response are one TLS record.
func TestSmallResponsesAreOneWrite(t *testing.T) {
	p := newReadServer(t, 3, 5000)
	for _, path := range []string{configmaps + "/c1", configmaps + "/c1?resourceVersion=0", configmaps} {
		serve, c := repeat(t, p.Server, path, runtime.ContentTypeProtobuf)
		c.writes = 0
		serve()
		if c.writes != 1 {
			t.Errorf("%s: got %d writes, want 1", path, c.writes)
		}
	}
}

// BenchmarkServe measures requests in process: all but TLS and the network.
func BenchmarkServe(b *testing.B) {
	p := newReadServer(b, 200, 4500)
	for _, bench := range []struct{ name, path string }{
		{"get", configmaps + "/c1"},
		{"get-cached", configmaps + "/c1?resourceVersion=0"},
		{"list-200", configmaps + "?resourceVersion=0"},
		{"list-10-by-label", configmaps + "?resourceVersion=0" + tenOfMany},
	} {
		b.Run(bench.name, func(b *testing.B) {
			serve, c := repeat(b, p.Server, bench.path, runtime.ContentTypeProtobuf)
			before := c.wrote
			b.ReportAllocs()
			for b.Loop() {
				serve()
			}
			b.SetBytes(int64((c.wrote - before) / b.N))
		})
	}
}

// BenchmarkParseRequest measures the parser that routing and authorization share.
func BenchmarkParseRequest(b *testing.B) {
	for _, target := range []string{
		"/api/v1/namespaces/a/pods/p", "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1&resourceVersion=0",
	} {
		b.Run(target, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := new(request.Request).Parse("GET", target); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
