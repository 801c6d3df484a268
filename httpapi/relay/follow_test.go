package relay

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"path"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/httpapi/reads"
	"github.com/larder-io/larder/httpapi/request"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/storage"
	"github.com/larder-io/larder/internal/registry/wire"
	"github.com/larder-io/larder/kv/kvtest"
	"github.com/larder-io/larder/watch"
)

// apiServer is an upstream that has CRDs, boxes and ConfigMaps. It also works in a synctest bubble.
type apiServer struct {
	*Relay
	revision int64
	watches  int           // the status code of watches; 0 opens them
	cutAfter time.Duration // how long watches last; 0 is forever. The relay's probe gets a bookmark before
	minor    string
	conn     net.Conn          // the relay's connection
	lists    map[string]int    // status codes of lists by resource; 0 returns the list
	items    map[string][]byte // a resource's only object
	events   map[string]chan []byte
	mu       sync.Mutex
}

var serverKinds = map[string]wire.Kind{
	"configmaps":                {APIVersion: "v1", Kind: "ConfigMap", ListKind: "ConfigMapList"},
	"customresourcedefinitions": {APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition", ListKind: "CustomResourceDefinitionList"},
	"boxes":                     {APIVersion: "example.com/v1", Kind: "Box", ListKind: "BoxList"},
}

// start runs a relay of an upstream in a synctest bubble until the test ends.
func start(t *testing.T, resources *registry.Registry, configure ...func(*Config)) *apiServer {
	t.Helper()
	s := &apiServer{revision: 100, minor: "36", conn: new(net.TCPConn), lists: make(map[string]int), items: make(map[string][]byte), events: make(map[string]chan []byte)}
	for resource := range serverKinds {
		s.events[resource] = make(chan []byte)
	}
	s.Relay = newRelay(t, resources, &http.Client{Transport: s})
	s.config.Idle = time.Hour
	for _, fn := range configure {
		fn(&s.config)
	}
	kvtest.RunUntilEnd(t, s.Run)
	synctest.Wait()
	return s
}

func writerOf(resource string) wire.Writer {
	if resource == "boxes" {
		return wire.JSON(serverKinds[resource])
	}
	return wire.Protobuf(serverKinds[resource])
}

// RoundTrip implements http.RoundTripper.
func (s *apiServer) RoundTrip(req *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	respond := func(code int, body []byte) (*http.Response, error) {
		return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": req.Header["Accept"]}, Body: io.NopCloser(bytes.NewReader(body))}, nil
	}
	resource := path.Base(req.URL.Path)
	if trace := httptrace.ContextClientTrace(req.Context()); trace != nil {
		trace.GotConn(httptrace.GotConnInfo{Conn: s.conn})
	}
	switch watches := req.URL.Query().Get("watch") != ""; {
	case resource == "version":
		return respond(http.StatusOK, fmt.Appendf(nil, `{"major": "1", "minor": %q}`, s.minor))
	case s.lists[resource] != 0:
		return respond(s.lists[resource], nil)
	case watches && s.watches != 0 && resource == "configmaps":
		return respond(s.watches, nil)
	case watches:
		from, to := io.Pipe()
		var bookmark []byte
		if o := (&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ResourceVersion: strconv.FormatInt(s.revision, 10)}}); req.URL.Query().Get("timeoutSeconds") == "3" && s.cutAfter != 0 {
			data, _ := o.Marshal()
			bookmark = writerOf(resource).AppendFrame(nil, "BOOKMARK", data)
		}
		go s.send(req.Context(), resource, to, s.cutAfter, bookmark)
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": req.Header["Accept"]}, Body: from}, nil
	}
	writer, meta := writerOf(resource), wire.ListMeta{Revision: s.revision}
	var body []byte
	if item := s.items[resource]; item == nil || req.URL.Query().Get("limit") == "1" {
		body = writer.AppendListFooter(writer.AppendListHeader(nil, meta, 0, 0), meta, 0)
	} else {
		body = writer.AppendListHeader(nil, meta, 1, writer.ItemSize(item))
		body = writer.AppendListFooter(append(writer.AppendItemHeader(body, 0, item), item...), meta, 1)
	}
	return respond(http.StatusOK, body)
}

// send sends the events of a resource in a watch, after a bookmark if there is one, and ends the watch after a time.
func (s *apiServer) send(ctx context.Context, resource string, to *io.PipeWriter, after time.Duration, bookmark []byte) {
	if bookmark != nil {
		time.Sleep(time.Second)
		_, _ = to.Write(bookmark)
	}
	var end <-chan time.Time
	if after != 0 {
		end = time.After(after)
	}
	for {
		select {
		case <-end:
			_ = to.Close()
			return
		case frame := <-s.events[resource]:
			_, _ = to.Write(frame)
		case <-ctx.Done():
			_ = to.CloseWithError(ctx.Err())
			return
		}
	}
}

// event sends one event in the watch of a resource.
func (s *apiServer) event(resource, event string, item []byte) {
	s.events[resource] <- writerOf(resource).AppendFrame(nil, event, item)
	synctest.Wait()
}

func (s *apiServer) set(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fn()
}

// read requests a resource. It returns the resource whose cache serves the read, nil if the request goes through.
func (s *apiServer) read(t *testing.T, target string) *registry.Resource {
	t.Helper()
	return s.readAs(t, target, "application/json")
}

// readAs is read for a client that sends accept.
func (s *apiServer) readAs(t *testing.T, target, accept string) *registry.Resource {
	t.Helper()
	var x request.Request
	if err := x.Parse("GET", target); err != nil {
		t.Fatal(err)
	}
	var from *reads.Resource
	if s.builtIn(schema.GroupVersionResource{Group: x.Group, Version: x.Version, Resource: x.Resource}) != nil {
		from = new(reads.Resource)
	}
	resource, _, done := s.Acquire(t.Context(), &x, []byte(accept), from)
	if resource == nil {
		return nil
	}
	done()
	return resource.View.Resource
}

// moveTo opens a new connection for later requests, to a server of a minor version.
func (s *apiServer) moveTo(minor string) { s.set(func() { s.conn, s.minor = new(net.TCPConn), minor }) }

// followConfigMaps makes the relay follow ConfigMaps, even if the upstream refuses watches of them.
func (s *apiServer) followConfigMaps(t *testing.T) *registry.Resource {
	t.Helper()
	s.read(t, configMaps)
	s.Relay.mu.Lock()
	defer s.Relay.mu.Unlock()
	return s.followed[schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}].stored()
}

// open opens a watch of the present objects.
func open(t *testing.T, r *registry.Resource) *watch.Watcher {
	t.Helper()
	initial := true
	w, err := r.Watch(t.Context(), storage.WatchRequest{ResourceVersion: "0", SendInitialEvents: &initial, Bookmarks: true})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

const configMaps, boxes = "/api/v1/configmaps?resourceVersion=0", "/apis/example.com/v1/boxes?resourceVersion=0"

// TestOpenWatchesKeepAResource checks that a resource is idle only after the end of its last watch.
func TestOpenWatchesKeepAResource(t *testing.T) {
	resources := newRegistry(t)
	synctest.Test(t, func(t *testing.T) {
		s := start(t, resources)
		s.config.Idle = time.Minute
		r := s.read(t, configMaps)
		if r == nil {
			t.Fatal("no cache serves the read")
		}
		w := open(t, r)
		time.Sleep(2*time.Minute + time.Second)
		w.Close()
		time.Sleep(50 * time.Second)
		if r.Cache.Retired() {
			t.Error("the relay stopped following a resource less than a minute after its watch")
		}
		time.Sleep(time.Minute)
		if !r.Cache.Retired() {
			t.Error("the relay still follows an idle resource")
		}
	})
}

// TestUpstreamsThatCannotBeWatched checks that requests go through after a while if the upstream does not keep the cache
// current. The relay stops following a resource that it may list but not watch.
func TestUpstreamsThatCannotBeWatched(t *testing.T) {
	resources := newRegistry(t)
	for code, limit := range map[int]time.Duration{http.StatusForbidden: 20 * time.Second, http.StatusServiceUnavailable: heartbeat + 70*time.Second} {
		synctest.Test(t, func(t *testing.T) {
			s := start(t, resources)
			s.set(func() { s.watches = code })
			r := s.followConfigMaps(t)
			s.set(func() { s.revision = 101 })
			time.Sleep(limit)
			if s.read(t, configMaps) != nil {
				t.Errorf("%d: a cache serves the read although nothing keeps it current", code)
			}
			if left := r.Cache.Retired(); left != (code == http.StatusForbidden) {
				t.Errorf("%d: the relay stopped following the resource: %t, want %t", code, left, !left)
			}
			s.set(func() { s.watches = 0 })
			time.Sleep(rejectedFor + 11*time.Second)
			if code != http.StatusForbidden { // it is watched again
				s.event("configmaps", "BOOKMARK", configMap(t, "", 103))
			}
			if s.read(t, configMaps) == nil {
				t.Errorf("%d: no cache serves the read later", code)
			}
		})
	}
}

// TestUpstreamsThatSendNothing has a proxy between the upstream and the relay that delays events. Although watches can be
// opened, requests go through after a while, until bytes arrive.
func TestUpstreamsThatSendNothing(t *testing.T) {
	resources := newRegistry(t)
	synctest.Test(t, func(t *testing.T) {
		s := start(t, resources)
		if s.read(t, configMaps) == nil {
			t.Fatal("no cache serves the read")
		}
		time.Sleep(heartbeat + s.config.ServeStale + time.Second)
		if s.read(t, configMaps) == nil {
			t.Error("no cache serves the read, although it is current")
		}
		s.set(func() { s.revision = 101 })
		for range 3 { // watches
			time.Sleep(heartbeat + s.config.ServeStale + time.Second)
			if s.read(t, configMaps) != nil {
				t.Error("a cache serves the read although nothing keeps it current")
			}
		}
		s.event("configmaps", "BOOKMARK", configMap(t, "", 103))
		if s.read(t, configMaps) == nil {
			t.Error("no cache serves the read after a bookmark")
		}
	})
}

// TestPageLargerThanTheLimit checks that the relay stops following a resource with a page that exceeds the memory limit,
// and tries again later.
func TestPageLargerThanTheLimit(t *testing.T) {
	resources := newRegistry(t)
	synctest.Test(t, func(t *testing.T) {
		s := start(t, resources, func(c *Config) { c.MemoryLimit.limit = 3000 })
		s.set(func() { s.items["configmaps"] = configMap(t, strings.Repeat("x", 2000), 95) })
		s.read(t, configMaps)
		time.Sleep(rejectedFor)
		s.Relay.mu.Lock()
		f := s.followed[schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}]
		s.Relay.mu.Unlock()
		if f == nil || !f.rejected.Load() || f.alive.Err() == nil {
			t.Errorf("a resource with a page that is too large: %+v; want it rejected, and no longer followed", f)
		}
		s.set(func() { s.items["configmaps"] = nil })
		time.Sleep(11 * time.Second)
		if s.read(t, configMaps) == nil {
			t.Error("no cache serves the read later")
		}
	})
}

// TestWatchesCutBeforeTheirBookmarks checks that a current cache has the age 0, although each watch is cut before its first
// bookmark.
func TestWatchesCutBeforeTheirBookmarks(t *testing.T) {
	resources := newRegistry(t)
	synctest.Test(t, func(t *testing.T) {
		s := start(t, resources)
		s.set(func() { s.cutAfter = 30 * time.Second })
		var x request.Request
		if err := x.Parse("GET", configMaps); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for time.Since(began) < 10*time.Minute {
			s.set(func() { s.revision++ }) // of another resource
			resource, age, done := s.Acquire(t.Context(), &x, nil, new(reads.Resource))
			if resource == nil || age != 0 {
				t.Fatalf("after %v: resource %v, age %v; want a cache with the age 0", time.Since(began), resource, age)
			}
			done()
			time.Sleep(time.Second)
		}
	})
}

// TestNewerServerBehindTheSameAddress checks that no watch gets an event from a newer server, whose objects may have
// unknown fields. During an upgrade, a new connection leads to the newer server.
func TestNewerServerBehindTheSameAddress(t *testing.T) {
	resources := newRegistry(t)
	synctest.Test(t, func(t *testing.T) {
		s := start(t, resources)
		s.set(func() { s.cutAfter = time.Second })
		r := s.read(t, configMaps)
		if r == nil {
			t.Fatal("no cache serves the read")
		}
		w := open(t, r)
		defer w.Close()
		if _, err := w.Next(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		for time.Now().UnixNano()%int64(contactInterval) != 0 { // just after a request for the version
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		s.moveTo("37")
		ended := make(chan struct{})
		defer close(ended)
		go func() {
			select {
			case <-time.After(2 * s.cutAfter): // after the last watch of the older server
			case <-ended:
				return
			}
			select {
			case s.events["configmaps"] <- writerOf("configmaps").AppendFrame(nil, "ADDED", configMap(t, "new", 101)):
			case <-ended:
			}
		}()
		if deliveries, err := w.Next(t.Context(), nil); err != io.EOF {
			t.Errorf("the watch got %v, error %v; want EOF", deliveries, err)
		}
		if s.read(t, configMaps) != nil {
			t.Error("a cache serves the read")
		}
	})
}

// TestProvenReadsHaveNoAge checks that a read has the age 0 if the relay has just compared the cache with the upstream.
func TestProvenReadsHaveNoAge(t *testing.T) {
	resources := newRegistry(t)
	synctest.Test(t, func(t *testing.T) {
		s := start(t, resources)
		s.read(t, configMaps)
		time.Sleep(time.Second)
		s.contact.last.Store(time.Now().Add(-time.Minute).UnixNano())
		for target, want := range map[string]time.Duration{
			configMaps: time.Minute,
			"/api/v1/configmaps?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan": 0,
		} {
			time.Sleep(time.Nanosecond)
			var x request.Request
			if err := x.Parse("GET", target); err != nil {
				t.Fatal(err)
			}
			resource, age, done := s.Acquire(t.Context(), &x, nil, new(reads.Resource))
			if resource == nil || age.Truncate(time.Second) != want {
				t.Fatalf("%s: resource %v, age %v; want a cache with the age %v", target, resource, age, want)
			}
			done()
		}
	})
}

// configMap encodes a ConfigMap.
func configMap(t *testing.T, name string, revision int64) []byte {
	t.Helper()
	o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", ResourceVersion: strconv.FormatInt(revision, 10)}}
	data, err := o.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestFewRefusalsDoNotEndFollowing checks that the relay follows a resource although the upstream refuses one watch and is
// then busy. Later the upstream refuses one or two lists.
func TestFewRefusalsDoNotEndFollowing(t *testing.T) {
	resources := newRegistry(t)
	synctest.Test(t, func(t *testing.T) {
		s := start(t, resources)
		s.set(func() { s.watches = http.StatusForbidden })
		r := s.followConfigMaps(t)
		time.Sleep(contactInterval - time.Second)
		s.set(func() { s.watches = http.StatusTooManyRequests })
		time.Sleep(checkInterval - contactInterval)
		if r.Cache.Retired() {
			t.Error("the relay stopped following the resource after one refused watch")
		}
		s.set(func() { s.watches, s.lists["configmaps"] = 0, http.StatusForbidden })
		for store := s.followed[schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}].store; !store.Refused(); {
			time.Sleep(time.Second)
		}
		time.Sleep(2*contactInterval - 2*time.Second)
		s.set(func() { delete(s.lists, "configmaps") })
		time.Sleep(time.Minute)
		if r.Cache.Retired() {
			t.Error("the relay stopped following the resource after a refused list")
		}
	})
}

// boxCRD encodes the CRD of boxes.
func boxCRD(t *testing.T, generation, revision int64) []byte {
	t.Helper()
	names := apiextensionsv1.CustomResourceDefinitionNames{Plural: "boxes", Singular: "box", Kind: "Box", ListKind: "BoxList"}
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "boxes.example.com", UID: "1", Generation: generation, ResourceVersion: strconv.FormatInt(revision, 10)},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{Group: "example.com", Scope: apiextensionsv1.ClusterScoped, Names: names,
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}}}}},
		Status: apiextensionsv1.CustomResourceDefinitionStatus{AcceptedNames: names, StoredVersions: []string{"v1"}},
	}
	data, err := crd.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestDeletedCRDs checks that watches deliver the deletions of all objects, even if another server of the upstream
// reports the deletion of the CRD first. Then they end. The counts of reads end with the CRD.
func TestDeletedCRDs(t *testing.T) {
	resources := newRegistry(t)
	synctest.Test(t, func(t *testing.T) {
		s := start(t, resources)
		s.event("customresourcedefinitions", "ADDED", boxCRD(t, 1, 101))
		s.items["boxes"] = []byte(`{"apiVersion":"example.com/v1","kind":"Box","metadata":{"name":"b","resourceVersion":"95"}}`)
		r := s.read(t, boxes)
		if r == nil {
			t.Fatal("no cache serves the read")
		}
		w := open(t, r)
		defer w.Close()
		next := func() (last watch.EventType, err error) {
			deliveries, err := w.Next(t.Context(), nil)
			for _, d := range deliveries {
				last = d.Type
			}
			return last, err
		}
		if last, err := next(); err != nil || last != watch.InitialEnd {
			t.Fatal(last, err)
		}
		gvr := r.GroupResource.WithVersion("v1")
		counts := s.monitors.Of(gvr, "")
		s.event("customresourcedefinitions", "DELETED", boxCRD(t, 1, 103))
		if s.read(t, boxes) != nil {
			t.Error("a cache serves the read although the CRD is deleted")
		}
		if s.monitors.Of(gvr, "") == counts {
			t.Error("the relay keeps the counts of a resource without a CRD")
		}
		s.event("boxes", "DELETED", []byte(`{"apiVersion":"example.com/v1","kind":"Box","metadata":{"name":"b","resourceVersion":"102"}}`))
		if last, err := next(); err != nil || last != watch.Deleted {
			t.Errorf("the watch got %v, error %v; want %v", last, err, watch.Deleted)
		}
		s.set(func() { s.lists["boxes"] = http.StatusNotFound })
		began := time.Now()
		if _, err := next(); err != io.EOF || time.Since(began) > checkInterval+20*time.Second {
			t.Errorf("the watch ended after %v with %v, want EOF within %v", time.Since(began), err, checkInterval+20*time.Second)
		}
	})
}

// TestChangedCRDs checks that requests for a custom resource go through after a change of its CRD, even if the
// resource was not followed.
func TestChangedCRDs(t *testing.T) {
	resources := newRegistry(t)
	synctest.Test(t, func(t *testing.T) {
		s := start(t, resources)
		s.event("customresourcedefinitions", "ADDED", boxCRD(t, 1, 101))
		s.event("customresourcedefinitions", "MODIFIED", boxCRD(t, 1, 102))
		if s.read(t, boxes) == nil {
			t.Error("requests go through after a change that leaves the generation")
		}
		for generation := range int64(2) {
			s.event("customresourcedefinitions", "MODIFIED", boxCRD(t, 2+generation, 103+generation))
			if s.read(t, boxes) != nil {
				t.Error("a cache serves the read just after a change")
			}
			time.Sleep(settleTime)
			if generation > 0 && s.read(t, boxes) == nil {
				t.Error("no cache serves the read later")
			}
		}
	})
}

// TestRecreatedCRDs checks that requests for a custom resource go through after its CRD was deleted and created again.
func TestRecreatedCRDs(t *testing.T) {
	resources := newRegistry(t)
	synctest.Test(t, func(t *testing.T) {
		s := start(t, resources)
		s.event("customresourcedefinitions", "ADDED", boxCRD(t, 1, 101))
		s.event("customresourcedefinitions", "DELETED", boxCRD(t, 1, 102))
		s.event("customresourcedefinitions", "ADDED", boxCRD(t, 1, 103))
		if s.read(t, boxes) != nil {
			t.Error("a cache serves the read just after the CRD was created again")
		}
		time.Sleep(settleTime)
		if s.read(t, boxes) == nil {
			t.Error("no cache serves the read later")
		}
	})
}

// TestVersionsThatAreNotServed checks that the relay uses no memory for versions that no CRD has. A client may name any
// number of them.
func TestVersionsThatAreNotServed(t *testing.T) {
	resources := newRegistry(t)
	synctest.Test(t, func(t *testing.T) {
		s := start(t, resources)
		s.event("customresourcedefinitions", "ADDED", boxCRD(t, 1, 101))
		for i := range 100 {
			if s.read(t, fmt.Sprintf("/apis/example.com/v%d/boxes?resourceVersion=0", i+2)) != nil {
				t.Fatal("a cache serves the read")
			}
		}
		synctest.Wait()
		s.Relay.mu.Lock()
		defer s.Relay.mu.Unlock()
		if n := len(s.followed); n != 1 { // CRDs
			t.Errorf("the relay has state of %d resources, want only that of CRDs", n)
		}
	})
}
