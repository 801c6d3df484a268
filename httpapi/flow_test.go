package httpapi

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	defaults "k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/http1"
	"github.com/larder-io/larder/httpapi/nethttp"
	"github.com/larder-io/larder/httpapi/request"
	"github.com/larder-io/larder/httpapi/routes"
	"github.com/larder-io/larder/internal/flow"
	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/registry/registrytest"
)

// named authenticates each request as the user in its Authorization header; root is the super-user.
var named = authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
	who := &user.DefaultInfo{Name: req.Header.Get("Authorization"), Groups: []string{user.AllAuthenticated}}
	if who.Name == "root" {
		who.Groups = append(who.Groups, user.SystemPrivilegedGroup)
	}
	return &authenticator.Response{User: who}, true, nil
})

// newFlow runs flow control with only the mandatory configuration, and with one seat for all requests that are not
// exempt. The UIDs of an object x are x-level and x-schema.
func newFlow(t *testing.T) *flow.Control {
	t.Helper()
	return newFlowWith(t, flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeReject})
}

// newFlowWith is newFlow with another response to requests that find no seat.
func newFlowWith(t *testing.T, limit flowcontrolv1.LimitResponse) *flow.Control {
	t.Helper()
	client := fake.NewClientset()
	for _, o := range defaults.MandatoryPriorityLevelConfigurations {
		o = o.DeepCopy()
		if o.UID = "exempt-level"; o.Name == flowcontrolv1.PriorityLevelConfigurationNameCatchAll {
			o.UID = "all-level"
			o.Spec.Limited.LimitResponse = limit
		}
		if err := client.Tracker().Add(o); err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range defaults.MandatoryFlowSchemas {
		o = o.DeepCopy()
		if o.UID = "exempt-schema"; o.Name == flowcontrolv1.FlowSchemaNameCatchAll {
			o.UID = "all-schema"
		}
		if err := client.Tracker().Add(o); err != nil {
			t.Fatal(err)
		}
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	flow := flow.New(flow.Config{Client: client, Informers: factory, Limit: 1, Stored: func(string) (storage.Stats, error) { return storage.Stats{}, nil }})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	factory.Start(ctx.Done())
	go func() { ended <- flow.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		factory.Shutdown()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return flow
}

// holding serves /hold until release, and reports when it began.
func holding(began chan<- struct{}, release <-chan struct{}) func(*routes.Table) {
	return func(routes *routes.Table) {
		routes.Handle("/hold", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			began <- struct{}{}
			<-release
			fmt.Fprint(w, "held")
		}))
		routes.Handle("/x", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "x") }))
	}
}

// open requests path as who. The response is closed when the test ends.
func (f *running) open(t *testing.T, path, who string) *http.Response {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, "https://"+f.addr+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", who)
	resp, err := f.client(t).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

func (f *running) get(t *testing.T, path, who string) response {
	t.Helper()
	resp := f.open(t, path, who)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response{resp.StatusCode, resp.Header, body}
}

// refusedByUpstream returns the response of upstream's filter to a request without a seat.
func refusedByUpstream(t *testing.T) response {
	t.Helper()
	release := make(chan struct{})
	began := make(chan struct{}, 1)
	h := genericfilters.WithMaxInFlightLimit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		began <- struct{}{}
		<-release
	}), 1, 1, genericfilters.BasicLongRunningRequestCheck(sets.NewString(), sets.NewString()))
	call := func() *httptest.ResponseRecorder {
		w, req := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/x", nil)
		h.ServeHTTP(w, req.WithContext(apirequest.WithRequestInfo(req.Context(), &apirequest.RequestInfo{Verb: "get", Path: "/x"})))
		return w
	}
	held := make(chan struct{})
	go func() {
		defer close(held)
		call()
	}()
	<-began
	w := call()
	close(release)
	<-held
	return response{w.Code, w.Header(), w.Body.Bytes()}
}

func (a response) sameRefusal(b response) bool {
	for _, name := range []string{"Retry-After", "Content-Type", "X-Content-Type-Options"} {
		if a.header.Get(name) != b.header.Get(name) {
			return false
		}
	}
	return a.code == b.code && string(a.body) == string(b.body)
}

// awaitFlow waits until flow control has loaded its configuration.
func (f *running) awaitFlow(t *testing.T) {
	t.Helper()
	proctest.Eventually(t, "the configuration is loaded", func() error {
		if got := f.get(t, "/x", "u").header.Get("X-Kubernetes-PF-PriorityLevel-UID"); got != "all-level" {
			return fmt.Errorf("level %q", got)
		}
		return nil
	})
}

// TestRequestsWithoutASeatAreRefusedAsUpstreamDoes checks that a request without a seat gets upstream's response.
// Exempt requests are not refused. All responses name the flow schema and priority level.
func TestRequestsWithoutASeatAreRefusedAsUpstreamDoes(t *testing.T) {
	want := refusedByUpstream(t)
	flow := newFlow(t)
	began, release := make(chan struct{}), make(chan struct{})
	f := newTestServer(t, Config{Access: Access{Authenticator: named}, Concurrency: Concurrency{Flow: flow}}, holding(began, release))
	const level, flowSchema = "X-Kubernetes-PF-PriorityLevel-UID", "X-Kubernetes-PF-FlowSchema-UID"
	f.awaitFlow(t)
	held := make(chan response)
	go func() { held <- f.get(t, "/hold", "u") }()
	<-began
	if a := f.get(t, "/x", "u"); !a.sameRefusal(want) || a.header.Get(level) != "all-level" || a.header.Get(flowSchema) != "all-schema" {
		t.Errorf("without a seat: %d %v %s, upstream %d %v %s", a.code, a.header, a.body, want.code, want.header, want.body)
	}
	if a := f.get(t, "/x", "root"); a.code != http.StatusOK || a.header.Get(level) != "exempt-level" || a.header.Get(flowSchema) != "exempt-schema" {
		t.Errorf("exempt: got status %d with header %v, want 200", a.code, a.header)
	}
	close(release)
	for _, a := range []response{<-held, f.get(t, "/x", "v")} {
		if a.code != http.StatusOK || a.header.Get(flowSchema) != "all-schema" {
			t.Errorf("with a seat: got status %d with header %v, want 200", a.code, a.header)
		}
	}
}

// TestClientsThatLeaveLeaveTheQueue checks that a request that waits for a seat leaves the queue at once when its
// client resets the HTTP/2 stream or closes the connection.
func TestClientsThatLeaveLeaveTheQueue(t *testing.T) {
	flow := newFlowWith(t, flowcontrolv1.LimitResponse{
		Type:    flowcontrolv1.LimitResponseTypeQueue,
		Queuing: &flowcontrolv1.QueuingConfiguration{Queues: 1, HandSize: 1, QueueLengthLimit: 10},
	})
	began, release := make(chan struct{}), make(chan struct{})
	f := newTestServer(t, Config{Access: Access{Authenticator: named}, Concurrency: Concurrency{Flow: flow}, Timeouts: Timeouts{RequestTimeout: time.Hour}}, holding(began, release))
	f.awaitFlow(t)
	held := make(chan response)
	go func() { held <- f.get(t, "/hold", "u") }()
	<-began
	queued := func(want int) {
		t.Helper()
		proctest.Eventually(t, fmt.Sprint(want, " requests wait"), func() error {
			if reading, _ := flow.Waiting(); reading != want {
				return fmt.Errorf("got %d", reading)
			}
			return nil
		})
	}
	for _, leave := range []string{"reset", "close"} {
		var conn net.Conn
		transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: f.pool}}
		transport.DialContext = func(ctx context.Context, network, addr string) (_ net.Conn, err error) {
			conn, err = new(net.Dialer).DialContext(ctx, network, addr)
			return conn, err
		}
		ctx, reset := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+f.addr+"/x", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "u")
		start, ended := time.Now(), make(chan struct{})
		go func() {
			defer close(ended)
			if _, err := transport.RoundTrip(req); err == nil {
				t.Error("a request without a seat was served")
			}
		}()
		queued(1)
		if leave == "reset" {
			reset()
		} else {
			conn.Close()
		}
		<-ended
		queued(0)
		if took := time.Since(start); took >= time.Minute { // the longest wait in the queue
			t.Errorf("%s: the request left the queue after %v", leave, took)
		}
		reset()
		transport.CloseIdleConnections()
	}
	close(release)
	if a := <-held; a.code != http.StatusOK {
		t.Errorf("the request that has the seat: got status %d, want 200", a.code)
	}
}

// TestWatchesKeepNoSeat checks that a watch has its seat until it has sent the initial events.
func TestWatchesKeepNoSeat(t *testing.T) {
	back := registrytest.New(t, nil)
	flow := newFlow(t)
	p := &pair{running: serveBackWith(t, back, func(c *Config) { c.Flow, c.Authenticator = flow, named })}
	const path = "/api/v1/configmaps?watch=1"
	proctest.Eventually(t, "the configuration is loaded", func() error {
		if p.get(t, "/version", "u").header.Get("X-Kubernetes-PF-FlowSchema-UID") == "" {
			return errors.New("no flow schema")
		}
		return nil
	})
	for range 3 {
		resp := p.open(t, path, "u")
		// The head is sent first, so that the previous watch may still have its seat for the initial events.
		for ; resp.StatusCode == http.StatusTooManyRequests; resp = p.open(t, path, "u") {
			resp.Body.Close()
		}
		if resp.StatusCode != http.StatusOK || resp.Header.Get("X-Kubernetes-PF-FlowSchema-UID") != "all-schema" {
			t.Errorf("got status %d with header %v, want 200", resp.StatusCode, resp.Header)
		}
	}
	info := &apirequest.RequestInfo{IsResourceRequest: true, Verb: "create", APIVersion: "v1", Resource: "configmaps", Namespace: "a"}
	if n := flow.Watches(info); n != 3 {
		t.Errorf("a write is charged for %d watches, want 3", n)
	}
}

// TestResumedWatchesNeedNoSeat checks that a watch that resumes at a recent revision is served while no seat is free,
// and that watches with initial events are not.
func TestResumedWatchesNeedNoSeat(t *testing.T) {
	back, flow := registrytest.New(t, nil), newFlow(t)
	p := serveBackWith(t, back, func(c *Config) { c.Flow, c.Authenticator = flow, named })
	const path = "/api/v1/configmaps"
	var list metav1.List
	proctest.Eventually(t, "the configuration is loaded", func() error {
		a := p.get(t, path, "u")
		if a.header.Get("X-Kubernetes-PF-PriorityLevel-UID") != "all-level" {
			return fmt.Errorf("got status %d: %s", a.code, a.body)
		}
		return json.Unmarshal(a.body, &list)
	})
	taken := p.takeSeat(t, flow)
	defer taken.Release()
	watch := func(query string, want int) {
		t.Helper()
		resp := p.open(t, path+"?watch=1&"+query, "u")
		if resp.StatusCode != want || resp.Header.Get("X-Kubernetes-PF-FlowSchema-UID") != "all-schema" {
			t.Errorf("%q: got status %d with header %v, want %d", query, resp.StatusCode, resp.Header, want)
		}
	}
	resumed := "resourceVersion=" + list.ResourceVersion
	watch(resumed, http.StatusOK)
	watch(resumed+"&allowWatchBookmarks=1", http.StatusOK)
	watch("resourceVersion=0", http.StatusTooManyRequests)
	watch("", http.StatusTooManyRequests)
	watch("sendInitialEvents=1&allowWatchBookmarks=1&resourceVersionMatch=NotOlderThan&"+resumed, http.StatusTooManyRequests)

	if !p.chain.freeUndecided.TryAcquire(maxFreeUndecided) {
		t.Error("a watch that was authorized still counts as undecided")
	}
	watch(resumed, http.StatusTooManyRequests)
}

// takeSeat takes the only seat of newFlow.
func (f *running) takeSeat(t *testing.T, control *flow.Control) *flow.Seat {
	t.Helper()
	seat, req := new(flow.Seat), new(request.Request)
	req.Verb, req.Path = "get", "/x"
	a := req.Attributes(&user.DefaultInfo{Name: "v", Groups: []string{user.AllAuthenticated}})
	if class, ok := control.Acquire(t.Context(), a, req, false, time.Now(), seat); !ok || class.LevelUID != "all-level" {
		t.Fatalf("got no seat: %+v", class)
	}
	return seat
}

// TestRequestsInFlightAreBounded checks that without flow control the number of requests is limited, except those of
// the super-user.
func TestRequestsInFlightAreBounded(t *testing.T) {
	want := refusedByUpstream(t)
	began, release := make(chan struct{}), make(chan struct{})
	f := newTestServer(t, Config{Access: Access{Authenticator: named}, Concurrency: Concurrency{MaxInFlight: 1, MaxMutatingInFlight: 1}}, holding(began, release))
	held := make(chan response)
	go func() { held <- f.get(t, "/hold", "u") }()
	<-began
	if a := f.get(t, "/x", "u"); !a.sameRefusal(want) {
		t.Errorf("beyond the limit: got status %d, header %v and body %s, want upstream's refusal", a.code, a.header, a.body)
	}
	if a := f.get(t, "/x", "root"); a.code != http.StatusOK {
		t.Errorf("the super-user: got status %d, want 200: %s", a.code, a.body)
	}
	if out := f.raw(t, "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"); !strings.HasPrefix(out, "HTTP/1.1 200 ") {
		t.Errorf("a mutating request: got %q, want status 200", out)
	}
	close(release)
	if a := <-held; a.code != http.StatusOK {
		t.Errorf("the request within the limit: got status %d, want 200", a.code)
	}
	if a := f.get(t, "/x", "u"); a.code != http.StatusOK {
		t.Errorf("after the request within the limit: got status %d, want 200", a.code)
	}
}

// TestSmallResponsesReleaseTheSeatBeforeSending checks that a seat is free before a client can have read a small
// response, that a large response holds its seat while it is sent, and a handler whose client no longer waits holds
// its seat until it returns.
func TestSmallResponsesReleaseTheSeatBeforeSending(t *testing.T) {
	counts, held, release := make(chan *flow.Gauge, 1), make(chan int64, 1), make(chan struct{})
	f := newTestServerWith(t, Config{Access: Access{Authenticator: named}, Concurrency: Concurrency{MaxInFlight: 1}}, func(c *http1.Config) {
		handle := c.Handler
		c.Handler = func(carrier exchange.Carrier, received time.Time) *exchange.Exchange {
			x, gauge := handle(carrier, received), <-counts
			held <- gauge.Add(0)
			return x
		}
	}, func(routes *routes.Table) {
		for path, size := range map[string]int{"/large": 2 * exchange.RecordSize, "/piecemeal": nethttp.MaxBuffered + 1} {
			routes.Handle(path, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(make([]byte, size)) }))
		}
		routes.Handle("/late", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	})
	for path, want := range map[string]int64{"/nowhere": 0, "/large": 1, "/piecemeal": 1, "/late?timeout=10ms": 1} {
		counts <- &f.inflight.ReadOnly
		f.get(t, path, "u")
		if n := <-held; n != want {
			t.Errorf("%s: got %d held seats when the response is about to be sent, want %d", path, n, want)
		}
		if strings.HasPrefix(path, "/late") {
			close(release)
		}
		proctest.Eventually(t, "the seat is free", func() error {
			if n := f.inflight.ReadOnly.Add(0); n != 0 {
				return fmt.Errorf("%s: %d seats are held", path, n)
			}
			return nil
		})
	}
}
