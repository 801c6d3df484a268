package httpapi

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/reads"
	"github.com/larder-io/larder/httpapi/revocation"
	"github.com/larder-io/larder/httpapi/streams"
	"github.com/larder-io/larder/httpapi/writes"
	"github.com/larder-io/larder/internal/flow"
)

// reader serves reads from encoded bytes.
type reader struct {
	stitcher          *reads.Stitcher
	streams           *streams.Streams
	rights            *revocation.Rights
	flow              *flow.Control // may be nil
	cbor              bool          // the feature gate CBORServingAndStorage is on
	minRequestTimeout time.Duration // minimum duration of a watch without timeoutSeconds
	timeout           time.Duration // limits opening a watch
}

// read serves a GET, LIST or WATCH from encoded bytes. It returns false for requests that upstream's handlers must
// serve.
func (r *reader) read(x *apiCall, resource *reads.Resource) bool {
	mayBeCBOR := r.cbor && bytes.Contains(x.Peek("Accept"), []byte("cbor")) // only upstream's handlers write CBOR
	if resource.View.Resource.Cache == nil || x.Audit.RecordsResponses() && x.Verb != "watch" || mayBeCBOR {
		return false
	}
	x.reading.Exchange, x.reading.Stitcher = &x.Exchange, r.stitcher
	if x.Verb != "watch" {
		defer timed(x).log(x)
		if x.Traced() && (x.Verb == "get" || x.Verb == "list") {
			x.Enter(writes.SpanName(x.Verb), attributesOf(x)...)
		}
		return x.reading.Serve(resource)
	}
	if len(x.Peek("Upgrade")) > 0 && wsstream.IsWebSocketRequest(x.HTTP()) {
		return false // upstream's handler serves websockets
	}
	r.streams.Watch(streams.WatchRequest{
		Read: &x.reading, Flow: r.flow, Attributes: func() []attribute.KeyValue { return attributesOf(x) }, Join: func() streams.Right { return r.rights.Join(&x.Exchange) },
		MinRequestTimeout: r.minRequestTimeout, RequestTimeout: r.timeout,
	}, resource)
	return true
}

// write serves a write.
func write(x *apiCall, e *writes.Endpoint) {
	defer timed(x).log(x)
	e.Serve(&x.Exchange, func() []attribute.KeyValue { return attributesOf(x) })
}

// attributesOf returns the attributes of upstream's spans (apiserver pkg/endpoints/handlers/trace_util.go).
func attributesOf(x *apiCall) []attribute.KeyValue {
	info, req := x.RequestInfo(), x.HTTP()
	return []attribute.KeyValue{
		attribute.String("accept", string(x.Peek("Accept"))), attribute.String("audit-id", x.AuditID), attribute.String("client", net.GetClientIP(req).String()),
		attribute.String("api-group", x.Group), attribute.String("api-version", x.Version), attribute.String("name", x.Name),
		attribute.String("subresource", x.Subresource), attribute.String("namespace", x.Namespace), attribute.String("protocol", req.Proto),
		attribute.String("resource", x.Resource), attribute.String("scope", metrics.CleanScope(info)), attribute.String("url", x.Path),
		attribute.String("user-agent", string(x.Peek("User-Agent"))), attribute.String("verb", exchange.NormalizedVerb(&x.Exchange)),
	}
}

const (
	// slowFrom is the minimum duration of a write, GET or LIST whose steps are logged (apiserver
	// pkg/endpoints/handlers/get.go).
	slowFrom = 500 * time.Millisecond

	// slowVerbosity is the minimum verbosity for that (k8s.io/utils/trace).
	slowVerbosity = 2
)

// slowRequest measures a write, GET or LIST, without the time to send a large list.
type slowRequest struct {
	began  time.Time // zero: slow requests are not logged
	waited time.Duration
}

// timed starts to measure x.
func timed(x *apiCall) slowRequest {
	if !klog.V(slowVerbosity).Enabled() {
		return slowRequest{}
	}
	return slowRequest{time.Now(), x.Waited}
}

// log logs the steps of x and their durations if x was slow, as k8s.io/utils/trace does. That package needs the
// attributes of every request.
func (r slowRequest) log(x *apiCall) {
	took := time.Since(r.began)
	if r.began.IsZero() || took < slowFrom {
		return
	}
	klog.V(slowVerbosity).Info(r.text(x, took))
}

func (r slowRequest) text(x *apiCall, took time.Duration) string {
	name, stored := writes.SpanName(x.Verb), "About to write a response"
	switch x.Verb {
	case "list":
		stored = "Listing from storage done"
	case "create", "update":
		stored = "Write to database call succeeded"
	case "patch":
		stored = "Object stored in database"
	case "delete":
		stored = "Object deleted from database"
	}
	var fields []string
	for _, f := range attributesOf(x) {
		fields = append(fields, fmt.Sprintf("%s:%v", f.Key, f.Value.AsInterface()))
	}
	const clock = "15:04:05.000"
	waited := x.Waited - r.waited // mostly for the store
	var b strings.Builder
	id := rand.Int32()
	fmt.Fprintf(&b, "Trace[%d]: %q %s (%v) (total time: %vms):", id, name, strings.Join(fields, ","), r.began.Format("02-Jan-2006 "+clock), took.Milliseconds())
	step := func(what string, from, to time.Duration) {
		fmt.Fprintf(&b, "\nTrace[%d]: ---%q %vms (%v)", id, what, (to - from).Milliseconds(), r.began.Add(to).Format(clock))
	}
	const share = slowFrom / 3 // the threshold that k8s.io/utils/trace has for a trace of two steps
	if waited >= share {
		step(stored, 0, waited)
	}
	if took-waited >= share {
		step("Writing http response done", waited, took)
	}
	fmt.Fprintf(&b, "\nTrace[%d]: [%v] [%v] END\n", id, took, took)
	return b.String()
}
