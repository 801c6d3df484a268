package httpapi

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/larder-io/larder/internal/proctest"
)

// event is one event of a JSON watch.
type event struct {
	Type   string
	Object struct {
		Kind, APIVersion string
		Metadata         struct {
			Name, Namespace, ResourceVersion string
			Annotations                      map[string]string
		}
		Reason, Message string
		Code            int
		Rows            []any
		Columns         []any `json:"columnDefinitions"`
	}
}

func (e event) String() string {
	name := e.Object.Metadata.Name
	if e.Object.Metadata.Annotations[metav1.InitialEventsAnnotationKey] == "true" {
		name = "end"
	}
	return e.Type + " " + name
}

// openWatch opens a watch and returns its response, and a reader of its body.
func (p *pair) openWatch(t testing.TB, path, accept string) (*http.Response, *bufio.Reader) {
	t.Helper()
	req, _ := http.NewRequest("GET", "https://"+p.addr+path, nil)
	req.Header.Set("Accept", accept)
	resp, err := p.client(t).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != 200 {
		body, _ := io.ReadAll(resp.Body)
		t.Fatalf("%s: got status %d, want 200: %s", path, resp.StatusCode, body)
	}
	return resp, bufio.NewReader(resp.Body)
}

func nextEvent(t testing.TB, in *bufio.Reader) (e event, raw string) {
	t.Helper()
	line, err := in.ReadString('\n')
	if err != nil {
		t.Fatalf("got %q and error %v, want an event", line, err)
	}
	if err := json.Unmarshal([]byte(line), &e); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return e, line
}

func expect(t testing.TB, in *bufio.Reader, want ...string) {
	t.Helper()
	for _, w := range want {
		if e, raw := nextEvent(t, in); e.String() != w {
			t.Fatalf("got %s, want %s\n%s", e, w, raw)
		}
	}
}

const configmaps = "/api/v1/namespaces/a/configmaps"

func configmap(name, labels, value string) string {
	return fmt.Sprintf(`{"metadata":{"name":"%s","labels":{%s}},"data":{"k":"%s"}}`, name, labels, value)
}

// TestWatchEvents checks the events of watches of all objects, of a label, of one name and of the older path.
func TestWatchEvents(t *testing.T) {
	p := newPair(t)
	p.ours.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"a"}}`))
	p.ours.must(t, post(configmaps, configmap("one", `"x":"1"`, "")))
	resp, all := p.openWatch(t, configmaps+"?watch=1&allowWatchBookmarks=1", "application/json")
	if got := resp.Header.Get("Content-Type"); got != "application/json" || len(resp.TransferEncoding) != 1 || resp.Header.Get("Cache-Control") == "" || resp.Header.Get("Audit-Id") == "" {
		t.Errorf("got header %v and transfer encoding %v", resp.Header, resp.TransferEncoding)
	}
	expect(t, all, "ADDED one", "BOOKMARK end")
	_, selected := p.openWatch(t, configmaps+"?watch=1&labelSelector=x%3D1", "application/json")
	expect(t, selected, "ADDED one")
	_, named := p.openWatch(t, "/api/v1/watch/namespaces/a/configmaps/two", "application/json")
	_, path := p.openWatch(t, "/api/v1/watch/configmaps", "application/json")
	expect(t, path, "ADDED one")

	p.ours.must(t, post(configmaps, configmap("two", `"x":"1"`, "<")))
	p.ours.must(t, put(configmaps+"/two", configmap("two", `"x":"2"`, "")))
	p.ours.must(t, del(configmaps+"/two"))
	expect(t, all, "ADDED two", "MODIFIED two", "DELETED two")
	expect(t, selected, "ADDED two")
	last, raw := nextEvent(t, selected)
	if last.String() != "DELETED two" || !strings.Contains(raw, `"x":"1"`) {
		t.Errorf("got %s, want DELETED with the last state that was selected", raw)
	}
	expect(t, named, "ADDED two", "MODIFIED two", "DELETED two")
	expect(t, path, "ADDED two", "MODIFIED two", "DELETED two")

	// A watch can resume at the revision of another watch's event.
	_, resumed := p.openWatch(t, configmaps+"?watch=1&resourceVersion="+last.Object.Metadata.ResourceVersion, "application/json")
	expect(t, resumed, "DELETED two")
	p.ours.must(t, del(configmaps+"/one"))
	expect(t, resumed, "DELETED one")
}

// TestWatchFramesMatchUpstream compares the whole stream with the stream of upstream's handlers, byte by byte. Watches
// that differ are repeated with more time, because a busy machine may not send everything before they end.
func TestWatchFramesMatchUpstream(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.seed(t)
	var all sync.WaitGroup // they mostly wait, so that many can run at once
	for _, accept := range []string{
		"application/json", "application/vnd.kubernetes.protobuf", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
		"application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", "application/json;as=PartialObjectMetadata;v=v1beta1;g=meta.k8s.io",
		"application/json;as=Table;v=v1;g=meta.k8s.io", "application/json;stream=watch", "application/yaml", "text/html",
	} {
		for _, path := range []string{
			"/api/v1/configmaps?watch=1&allowWatchBookmarks=1&timeoutSeconds=10", "/api/v1/pods?watch=1&timeoutSeconds=10&fieldSelector=spec.nodeName%3Dn1", "/api/v1/nodes?watch=true&timeoutSeconds=10&allowWatchBookmarks=true",
			"/apis/autoscaling/v1/horizontalpodautoscalers?watch=1&timeoutSeconds=10&allowWatchBookmarks=1", "/api/v1/namespaces?watch=1&timeoutSeconds=10&resourceVersion=0", "/api/v1/pods?watch=1&timeoutSeconds=10&includeObject=None&allowWatchBookmarks=1",
			"/api/v1/configmaps?watch=1&timeoutSeconds=10&resourceVersion=1", "/api/v1/configmaps?watch=1&resourceVersion=x", "/api/v1/configmaps?watch=1&sendInitialEvents=true", "/api/v1/configmaps?watch=1&resourceVersionMatch=Exact&resourceVersion=1",
			"/api/v1/configmaps?watch=1&labelSelector=((", "/api/v1/configmaps?watch=1&timeoutSeconds=60&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=999999",
		} {
			if !strings.Contains(accept, "json") && strings.Contains(path, "999999") {
				continue // waits three seconds
			}
			all.Go(func() {
				var differ string
				for _, seconds := range []string{"10", "20", "40"} { // bookmarks of a minute come at random times
					c := call{method: "GET", path: strings.Replace(path, "timeoutSeconds=10", "timeoutSeconds="+seconds, 1), header: map[string]string{"Accept": accept}}
					var theirs response
					var other sync.WaitGroup
					other.Go(func() { theirs = p.theirs.call(t, c) })
					ours := p.ours.call(t, c)
					other.Wait()
					if differ = difference(t, c, ours, theirs); differ == "" {
						return
					}
				}
				t.Error(differ)
			})
		}
	}
	all.Wait()
}

// TestProtobufFrames checks the frames of a watch in protobuf.
func TestProtobufFrames(t *testing.T) {
	p := newPair(t)
	p.ours.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"a"}}`))
	resp, in := p.openWatch(t, configmaps+"?watch=1", "application/vnd.kubernetes.protobuf")
	if got := resp.Header.Get("Content-Type"); got != "application/vnd.kubernetes.protobuf;stream=watch" {
		t.Errorf("got Content-Type %q, want that of a protobuf watch", got)
	}
	p.ours.must(t, post(configmaps, configmap("one", "", "")))
	var size [4]byte
	if _, err := io.ReadFull(in, size[:]); err != nil {
		t.Fatal(err)
	}
	frame := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(in, frame); err != nil {
		t.Fatal(err)
	}
	var e metav1.WatchEvent
	if err := e.Unmarshal(frame); err != nil || e.Type != "ADDED" || !bytes.HasPrefix(e.Object.Raw, []byte("k8s\x00")) {
		t.Errorf("got frame %q and error %v, want an ADDED event in protobuf", frame, err)
	}
}

// TestWatchersGetEqualFrames checks that several watches of the same objects receive equal bytes.
func TestWatchersGetEqualFrames(t *testing.T) {
	p := newPair(t)
	p.ours.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"a"}}`))
	var streams []*bufio.Reader
	for range 5 {
		_, in := p.openWatch(t, configmaps+"?watch=1&resourceVersion=1", "application/json")
		streams = append(streams, in)
	}
	p.ours.must(t, post(configmaps, configmap("one", "", strings.Repeat("x", 100_000))))
	_, want := nextEvent(t, streams[0])
	for _, in := range streams[1:] {
		if _, got := nextEvent(t, in); got != want {
			t.Errorf("got frame %.200q, want %.200q", got, want)
		}
	}
}

// TestEndsOfWatches checks that a watch ends at its timeout, with its client, and with the server.
func TestEndsOfWatches(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.ours.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"a"}}`))
	t.Run("at its timeout", func(t *testing.T) {
		start := time.Now()
		_, in := p.openWatch(t, configmaps+"?watch=1&timeoutSeconds=3", "application/json")
		if rest, err := io.ReadAll(in); err != nil || len(rest) > 0 {
			t.Errorf("got %q and error %v, want the end of the watch", rest, err)
		}
		if took := time.Since(start); took < 3*time.Second {
			t.Errorf("the watch ended after %v, want 3s", took)
		}
	})
	t.Run("with its client", func(t *testing.T) {
		resp, _ := p.openWatch(t, configmaps+"?watch=1", "application/json")
		before, _ := openStreams(p.streams)
		resp.Body.Close()
		proctest.Eventually(t, "the watch ends", func() error {
			if open, _ := openStreams(p.streams); open < before {
				return nil
			}
			p.streams.Probe()
			return errors.New("it is still open")
		})
	})
	t.Run("with the server", func(t *testing.T) {
		_, in := p.openWatch(t, configmaps+"?watch=1", "application/json")
		go p.stop()
		if rest, err := io.ReadAll(in); err != nil {
			t.Errorf("got %q and error %v, want the end of the watch", rest, err)
		}
	})
}

// TestWatchOverWebsocket checks the first frame of a watch over a websocket, which upstream's handler serves.
func TestWatchOverWebsocket(t *testing.T) {
	p := newPair(t)
	p.ours.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"a"}}`))
	p.ours.must(t, post(configmaps, configmap("one", "", "")))
	c := p.dial(t)
	fmt.Fprintf(c, "GET %s?watch=1 HTTP/1.1\r\nHost: h\r\nOrigin: https://h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n", configmaps)
	in := bufio.NewReader(c)
	resp, err := http.ReadResponse(in, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("got %v and error %v, want status 101", resp, err)
	}
	head := make([]byte, 4)
	if _, err := io.ReadFull(in, head); err != nil {
		t.Fatal(err)
	}
	payload := make([]byte, binary.BigEndian.Uint16(head[2:]))
	if _, err := io.ReadFull(in, payload); err != nil || head[0] != 0x81 || !bytes.HasPrefix(payload, []byte(`{"type":"ADDED","object":{"kind":"ConfigMap"`)) {
		t.Errorf("got head %x, payload %q and error %v, want a text frame with an ADDED event", head, payload, err)
	}
}

// TestWebsocketOfTwoConnectionFields checks that an Upgrade in a second Connection field counts, too. Upstream's
// handler then rejects the request, which is incomplete.
func TestWebsocketOfTwoConnectionFields(t *testing.T) {
	c := newPair(t).dial(t)
	fmt.Fprintf(c, "GET %s?watch=1 HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: keep-alive\r\nConnection: Upgrade\r\n\r\n", configmaps)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || resp.StatusCode != http.StatusBadRequest {
		t.Errorf("got %v and error %v, want status 400", resp, err)
	}
}

// TestReadsAreInUpstreamsMetrics checks that upstream's metrics count requests that never were net/http requests.
func TestReadsAreInUpstreamsMetrics(t *testing.T) {
	p := newPair(t)
	p.ours.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"a"}}`))
	p.ours.must(t, post(configmaps, configmap("one", "", "")))
	count := func(sample string) (n float64) {
		for line := range strings.SplitSeq(string(p.ours.must(t, get("/metrics")).body), "\n") {
			if rest, ok := strings.CutPrefix(line, sample+" "); ok {
				if _, err := fmt.Sscan(rest, &n); err != nil {
					t.Fatal(err)
				}
			}
		}
		return n
	}
	const labels = `component="apiserver",dry_run="",group="",resource="configmaps",scope="%s",subresource="",verb="%s",version="v1"}`
	total := func(code, scope, verb string) string {
		return fmt.Sprintf(`apiserver_request_total{code="`+code+`",`+labels, scope, verb)
	}
	samples := []string{
		total("200", "resource", "GET"), total("404", "resource", "GET"), total("200", "namespace", "LIST"),
		total("200", "cluster", "LIST"), total("400", "cluster", "LIST"), total("200", "namespace", "WATCH"),
		`apiserver_request_total{code="400",component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="log",verb="CONNECT",version="v1"}`,
		`apiserver_request_total{code="400",component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="status",verb="GET",version="v1"}`,
	}
	var before []float64
	for _, s := range samples {
		before = append(before, count(s))
	}
	for _, path := range []string{
		configmaps + "/one", configmaps + "/none", configmaps, "/api/v1/configmaps", "/api/v1/configmaps?limit=x", configmaps + "?watch=1&timeoutSeconds=1",
		defaultNS + "pods//log", defaultNS + "pods//status",
	} {
		p.ours.call(t, get(path))
	}
	for i, s := range samples {
		if n := count(s) - before[i]; n != 1 {
			t.Errorf("%s grew by %v, want 1", s, n)
		}
	}
	const open = `apiserver_longrunning_requests{component="apiserver",group="",resource="configmaps",scope="namespace",subresource="",verb="WATCH",version="v1"}`
	_, in := p.openWatch(t, configmaps+"?watch=1", "application/json")
	expect(t, in, "ADDED one")
	if n := count(open); n != 1 {
		t.Errorf("got %v open watches in the metrics, want 1", n)
	}
}

// TestReadsWarnOfDeprecatedKinds checks that reads that do not use upstream's handlers warn about a deprecated kind.
func TestReadsWarnOfDeprecatedKinds(t *testing.T) {
	p := newPair(t)
	p.ours.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"a"}}`))
	p.ours.must(t, post("/api/v1/namespaces/a/endpoints", `{"metadata":{"name":"e"}}`))
	const path = "/api/v1/namespaces/a/endpoints"
	for _, path := range []string{path, path + "/e", path + "?watch=1&timeoutSeconds=1"} {
		if a := p.ours.must(t, get(path)); len(a.header.Values("Warning")) != 1 {
			t.Errorf("%s: got header %v, want one Warning", path, a.header)
		}
	}
	if a := p.ours.must(t, get(configmaps)); len(a.header.Values("Warning")) != 0 {
		t.Errorf("configmaps: got header %v, want no Warning", a.header)
	}
}
