package relay

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/httpapi/request"
	"github.com/larder-io/larder/internal/registry"
)

// balancer forwards each connection to one of several servers. next returns the server of a new connection.
type balancer struct {
	address string
	next    func() *upstream

	mu   sync.Mutex
	open []net.Conn
}

// balance runs a balancer until the test ends.
func balance(t *testing.T, next func() *upstream) *balancer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	v := &balancer{address: l.Addr().String(), next: next}
	var copying sync.WaitGroup
	copying.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			v.mu.Lock()
			to, err := net.Dial("tcp", v.next().Listener.Addr().String())
			if err != nil {
				t.Error(err)
				from.Close()
				v.mu.Unlock()
				continue
			}
			v.open = append(v.open, from, to)
			v.mu.Unlock()
			for _, pair := range [][2]net.Conn{{from, to}, {to, from}} {
				copying.Go(func() {
					_, _ = io.Copy(pair[0], pair[1])
					pair[0].Close()
				})
			}
		}
	})
	t.Cleanup(func() {
		l.Close()
		v.move(nil)
		copying.Wait()
	})
	return v
}

// move closes all connections, and sets the server of new ones.
func (b *balancer) move(to *upstream) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next = func() *upstream { return to }
	for _, conn := range b.open {
		conn.Close()
	}
	b.open = nil
}

// serverOf returns a server that responds to all requests with its minor version.
func serverOf(t *testing.T, minor int) *upstream {
	return newUpstream(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, `{"major":"1","minor":"%d"}`, minor) })
}

// relayOf returns a relay that reaches u at an address by protocols.
func relayOf(t *testing.T, u *upstream, address string, protocols []string) *Relay {
	t.Helper()
	config := u.config()
	config.NextProtos, config.ServerName = protocols, "example.com"
	transport, err := TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { utilnet.CloseIdleConnectionsFor(transport) })
	r := newRelay(t, newRegistry(t), &http.Client{Transport: transport})
	r.config.CacheNewer, r.config.Upstream = true, &url.URL{Scheme: "https", Host: address}
	close(r.contact.asked)
	return r
}

// fill sends a list for f and returns the server that the list is from. Its body stays open for the time of the test.
func fill(t *testing.T, r *Relay, f *followed) (string, error) {
	t.Helper()
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, r.config.Upstream.JoinPath("api/v1/pods").String(), nil)
	resp, err := versionTransport{r, f, r.config.Client.Transport}.RoundTrip(req)
	if err != nil {
		return "", err
	}
	t.Cleanup(func() { resp.Body.Close() })
	head := make([]byte, len(`{"major":"1","minor":"37"`)) // not to the end, as a watch
	_, err = io.ReadFull(resp.Body, head)
	return strings.Trim(string(head[len(head)-3:]), `"`), err
}

// protocols are what a client offers.
func protocols() map[string][]string {
	return map[string][]string{"HTTP/1.1": {"http/1.1"}, "HTTP/2": {"h2", "http/1.1"}}
}

// TestConnectionsThatMove checks which servers may fill a cache when connections lead to a newer server, back to an
// older one, and to the newer one again.
func TestConnectionsThatMove(t *testing.T) {
	older, newer := serverOf(t, 36), serverOf(t, 37)
	for name, offered := range protocols() {
		t.Run(name, func(t *testing.T) {
			v := balance(t, func() *upstream { return older })
			r := relayOf(t, older, v.address, offered)
			var f *followed
			refused := false
			follow := func() { refused, f = false, &followed{cancel: func() { refused = true }} }
			for i, step := range []struct {
				to    *upstream
				again bool   // a new followed replaces f
				want  string // "" refuses
			}{{older, true, "36"}, {newer, false, ""}, {newer, true, "37"}, {older, false, ""}, {older, true, ""}, {newer, true, "37"}, {newer, false, "37"}} {
				if step.again {
					follow()
				}
				v.move(step.to)
				got, err := fill(t, r, f)
				for err != nil && !strings.Contains(err.Error(), "another version") { // from the closed connection
					got, err = fill(t, r, f)
				}
				if got != step.want || step.want != "" && (err != nil || refused) || step.want == "" && step.to == older && !refused {
					t.Errorf("step %d: %q, %v, refused %v", i, got, err, refused)
				}
			}
		})
	}
}

// TestServersInTurn checks that only the newest servers fill caches if each connection leads to the next server.
func TestServersInTurn(t *testing.T) {
	older, newer := serverOf(t, 36), serverOf(t, 37)
	for name, offered := range protocols() {
		t.Run(name, func(t *testing.T) {
			var dialed atomic.Int64
			v := balance(t, func() *upstream { return []*upstream{newer, older}[dialed.Add(1)%2] })
			r := relayOf(t, older, v.address, offered)
			r.contact.minor.Store(37)
			filled := 0
			for range 30 {
				if got, err := fill(t, r, &followed{cancel: func() {}}); err == nil {
					filled++
					if got != "37" {
						t.Errorf("a server of 1.%s fills a cache", got)
					}
				} else if name == "HTTP/2" && dialed.Load()%2 == 1 { // the connection leads to the older server
					v.mu.Lock()
					for _, conn := range v.open {
						conn.Close()
					}
					v.mu.Unlock()
				}
			}
			if filled == 0 {
				t.Error("no response fills a cache")
			}
			if r.contact.mixed.Load() {
				t.Error("the relay assumes that servers of several versions share a connection")
			}
		})
	}
}

// TestServersOnOneConnection checks that all requests go through if requests on one connection reach servers of several
// versions. The version that one request returns is then not that of the others.
func TestServersOnOneConnection(t *testing.T) {
	var responses atomic.Int64
	u := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"major":"1","minor":"%d"}`, 36+responses.Add(1)%2)
	})
	for name, offered := range protocols() {
		t.Run(name, func(t *testing.T) {
			responses.Store(0)
			r := relayOf(t, u, u.Listener.Addr().String(), offered)
			var x request.Request
			if err := x.Parse("GET", "/api/v1/pods?resourceVersion=0"); err != nil {
				t.Fatal(err)
			}
			for i, want := range []bool{true, false} {
				if err := r.askVersion(t.Context()); err != nil {
					t.Fatal(err)
				}
				if got := r.Caches(&x, []byte("application/vnd.kubernetes.protobuf"), true); got != want {
					t.Errorf("after %d responses: served by a cache: %t, want %t", i+1, got, want)
				}
			}
		})
	}
}

// TestOlderServersFillNoCache checks that a cache has no object from a server that is older than the others. Such a
// server omits fields. A client that writes the object back would remove them.
func TestOlderServersFillNoCache(t *testing.T) {
	resources := newRegistry(t)
	for own, newest := range map[int64]string{36: "37", 37: "37", 38: "37"} {
		synctest.Test(t, func(t *testing.T) {
			s := start(t, resources, func(c *Config) { c.CacheNewer, c.Minor = true, own })
			s.set(func() { s.cutAfter = time.Second })
			first := s.readAs(t, configMaps, runtime.ContentTypeProtobuf)
			s.moveTo(newest)
			time.Sleep(2 * contactInterval)
			second := s.readAs(t, configMaps, runtime.ContentTypeProtobuf)
			if first == nil || second == nil || first == second || !first.Cache.Retired() {
				t.Fatalf("upgrade to 1.%s: caches %p, %p", newest, first, second)
			}
			if cached := s.read(t, configMaps) != nil; cached != (own >= 37) {
				t.Errorf("served in JSON by a cache: %t", cached)
			}

			s.moveTo("36")
			time.Sleep(2 * s.cutAfter) // after the last watch of the newer server
			end := time.After(refusedFor)
			for open := true; open; {
				select {
				case s.events["configmaps"] <- writerOf("configmaps").AppendFrame(nil, "ADDED", configMap(t, "stripped", 101)):
				case <-end:
					open = false
				}
			}
			if !second.Cache.Retired() {
				t.Error("a cache that a newer server has filled gets events of an older one")
			}
			s.moveTo(newest)
			s.set(func() { s.items["configmaps"] = configMap(t, "whole", 101) })
			time.Sleep(refusedFor + 11*time.Second)
			third := s.readAs(t, configMaps, runtime.ContentTypeProtobuf)
			if third == nil {
				t.Fatal("no cache serves the read after the upgrade")
			}
			for name, r := range map[string]*registry.Resource{"whole": third, "": second} {
				page, err := r.Cache.Snapshot().List(cache.Query{}, nil)
				if err != nil || name == "" && len(page.Objects) != 0 || name != "" && (len(page.Objects) != 1 || page.Objects[0].Key() != "default/"+name) {
					t.Errorf("a cache has %v, %v", page.Objects, err)
				}
			}
		})
	}
}

// TestConnectionsThatBecomeShared checks that caches of a newer upstream end when a connection turns out to lead to
// servers of several versions.
func TestConnectionsThatBecomeShared(t *testing.T) {
	resources := newRegistry(t)
	synctest.Test(t, func(t *testing.T) {
		s := start(t, resources, func(c *Config) { c.CacheNewer = true })
		s.moveTo("37")
		time.Sleep(2 * contactInterval)
		r := s.readAs(t, configMaps, runtime.ContentTypeProtobuf)
		if r == nil {
			t.Fatal("no cache serves the read")
		}
		s.set(func() { s.minor = "36" })
		time.Sleep(2 * contactInterval)
		if s.readAs(t, configMaps, runtime.ContentTypeProtobuf) != nil || !r.Cache.Retired() {
			t.Error("the relay still follows the resource")
		}
	})
}

// TestUpstreamThatStaysOlder checks that requests go through, without waiting, while only older servers respond.
func TestUpstreamThatStaysOlder(t *testing.T) {
	resources := newRegistry(t)
	synctest.Test(t, func(t *testing.T) {
		s := start(t, resources, func(c *Config) { c.CacheNewer = true })
		s.moveTo("37")
		time.Sleep(2*contactInterval - time.Second)
		s.moveTo("36")
		for range 10 {
			began := time.Now()
			if s.readAs(t, configMaps, runtime.ContentTypeProtobuf) != nil || s.read(t, configMaps) != nil {
				t.Error("a cache serves the read")
			}
			if waited := time.Since(began); waited > time.Second {
				t.Errorf("requests wait for %v", waited)
			}
			time.Sleep(time.Minute)
		}
	})
}
