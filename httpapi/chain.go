package httpapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/handlers"
	"github.com/larder-io/larder/httpapi/identity"
	"github.com/larder-io/larder/httpapi/reads"
	"github.com/larder-io/larder/httpapi/request"
	"github.com/larder-io/larder/httpapi/routes"
	"github.com/larder-io/larder/httpapi/streams"
)

// chain takes one exchange through authentication, audit, impersonation, flow control and
// authorization to what answers it.
//
// It belongs to the goroutine that serves the exchange and ends with it.
type chain struct {
	handlers.Call

	s *Server

	impersonates bool // the request asks to act as somebody else
	foreign      bool // it has credentials that are not remembered
	claims       request.Attributes
	reading      reads.Read
}

// handle serves one request whose header has been read, up to what is to be sent. A panic
// goes no further.
func (s *Server) handle(c exchange.Carrier, received time.Time) *exchange.Exchange {
	x := &chain{s: s}
	s.handlers.Init(&x.Call, c, received, s.deadlines)
	x.run()
	return &x.Exchange
}

func (x *chain) run() {
	defer x.fence()
	if x.parse() && !x.refuse() {
		x.serve()
	}
}

// fence answers for a handler that panicked.
func (x *chain) fence() {
	p := recover()
	if p == nil {
		return
	}
	x.TakeTrail().Panicked(p)
	if exchange.IsAbort(p) {
		x.Cut = true
		return
	}
	klog.ErrorS(nil, "Request panicked", "method", x.Method, "path", x.Path, "auditID", x.AuditID, "panic", p, "stack", exchange.Stack())
	x.Panicked()
	x.Closing = true
}

// parse reads the request and answers it if that is not possible.
func (x *chain) parse() bool {
	x.AuditID = string(x.Peek("Audit-Id"))
	if x.AuditID == "" {
		x.AuditID = newAuditID()
	}
	x.CommonHeaders()
	if hsts := x.s.config.HSTS; hsts != "" {
		x.Set("Strict-Transport-Security", hsts)
	}
	facts := x.Carrier.Inspect()
	if facts.Code != 0 {
		x.Text(facts.Code, facts.Refusal)
		x.Closing = true
		return false
	}
	x.impersonates, x.foreign = facts.Impersonates, facts.Foreign
	x.foreign = x.foreign || x.s.credential.Unusual(x.Carrier.Lines())
	err := x.Parse(methodString(x.Carrier.Method()), string(x.Carrier.Target()))
	if errors.Is(err, request.ErrTarget) {
		x.Text(http.StatusBadRequest, "400 Bad Request")
		x.Closing = true
		return false
	}
	if err != nil {
		x.InternalError(fmt.Errorf("failed to create RequestInfo: %w", err))
		x.Del("Cache-Control") // upstream fails before it would set it
		return false
	}
	return true
}

// methodString copies a method, the usual ones without allocating.
func methodString(b []byte) string {
	for _, m := range [...]string{"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"} {
		if string(b) == m {
			return m
		}
	}
	return string(b)
}

// serve takes a parsed request through the chain.
func (x *chain) serve() {
	x.openTrail()
	if x.setDeadline() && x.checkOrigin() && x.authenticate() && x.audit() && x.impersonate() && x.acquireSeat() && x.authorize() {
		x.route()
	}
	x.CloseTrail()
}

// setDeadline bounds the request by the server's timeout, or the client's if that
// is shorter.
func (x *chain) setDeadline() bool {
	if x.LongRunning() {
		return true
	}
	timeout := x.s.config.RequestTimeout
	if asked := x.Query.Get("timeout"); asked != "" {
		d, err := time.ParseDuration(asked)
		if err != nil {
			refusal := apierrors.NewBadRequest("invalid timeout specified in the request URL - " + err.Error())
			x.auditRefusal(refusal.Error())
			x.Fail(refusal)
			return false
		}
		if d > 0 && d < timeout {
			timeout, x.Hurried = d, true
		}
	}
	x.Deadline = x.Received.Add(timeout)
	return true
}

// authenticate finds out who asks.
func (x *chain) authenticate() bool {
	switch err := x.s.identity.Authenticate(&x.Call, x.foreign); err {
	case nil:
		return true
	case identity.ErrLate:
		x.late()
	default:
		x.unauthorized()
	}
	return false
}

// late answers a request whose deadline passed before it was authenticated, impersonated
// and authorized.
func (x *chain) late() {
	if x.User == nil {
		x.auditRefusal(x.attempted())
	}
	x.Fail(apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0))
}

// unauthorized answers a client that could not be authenticated.
func (x *chain) unauthorized() {
	if x.Trail != nil {
		x.auditRefusal(x.attempted())
	}
	x.Fail(apierrors.NewUnauthorized("Unauthorized"))
}

// impersonate lets who may act as another do so. A request to act as another is never
// served as its sender's.
func (x *chain) impersonate() bool {
	if !x.impersonates || x.Carrier.Internal() {
		return true
	}
	if x.s.config.Authorizer == nil {
		x.Deny(apierrors.NewForbidden(schema.GroupResource{Group: x.Group, Resource: x.Resource}, x.Name, errors.New("nobody can say who may impersonate")))
		return false
	}
	w := handlers.NewRecorder()
	bound, cancel := x.Prepared()
	defer cancel()
	ctx := handlers.Context(x.Trail.Context(bound), x.RequestInfo(), x.User, x.Received)
	as := x.s.impersonation.Admit(w, x.HTTP().WithContext(ctx))
	switch {
	case as != nil:
		x.User, _ = apirequest.UserFrom(as.Context())
		x.Replace(as)
		return true
	case bound.Err() != nil:
		x.late()
	default:
		w.SendTo(&x.Response)
	}
	return false
}

// authorize asks whether the user may do what the Request says, which is what
// routing acts on too.
func (x *chain) authorize() bool {
	if x.s.config.Authorizer == nil || x.Carrier.Internal() {
		x.Trail.Decided(authorizer.DecisionAllow, "", nil, 0)
		return true
	}
	attributes := x.attributes()
	ctx, cancel := x.Prepared()
	defer cancel()
	decision, reason, err := x.ask(ctx, attributes)
	switch {
	case decision == authorizer.DecisionAllow:
		return true
	case err != nil && ctx.Err() != nil:
		x.late()
	case err != nil:
		x.InternalError(err)
	default:
		klog.V(4).InfoS("Forbidden", "path", x.Path, "reason", reason, "auditID", x.AuditID)
		x.Deny(responsewriters.ForbiddenStatusError(attributes, reason))
	}
	return false
}

// ask asks the authorizer, and records and counts its answer.
func (x *chain) ask(ctx context.Context, attributes *request.Attributes) (authorizer.Decision, string, error) {
	asked := time.Now()
	decision, reason, err := x.s.config.Authorizer.Authorize(x.Trail.Context(ctx), attributes)
	took := time.Since(asked)
	x.s.access.Authorized(decision, err, took)
	x.Trail.Decided(decision, reason, err, took)
	return decision, reason, err
}

func (x *chain) attributes() *request.Attributes {
	x.claims = request.Attributes{User: x.User, Request: &x.Request}
	return &x.claims
}

// route hands the request to what serves it.
func (x *chain) route() {
	if h := x.remote(); h != nil {
		x.Forward(h)
		return
	}
	if !x.IsResourceRequest {
		if h, ok := x.s.table.Load().NonResource(x.Path); ok {
			x.Serve(h)
			return
		}
		x.unknown()
		return
	}
	i, ok := x.s.table.Load().Lookup(&x.Request)
	switch {
	case !strings.HasPrefix(x.Path, "/"+x.APIPrefix+"/"): // "//api/...": authorized as a resource, but not routed as one
		x.Text(http.StatusNotFound, "404 page not found")
	case !ok && x.extend():
	case !ok:
		x.unknown()
	case !i.Permits(&x.Request):
		x.noMethod(i)
	case i.View != nil && x.read(&i.Resource):
	default:
		h, ok := i.Handler(&x.Request)
		if !ok {
			x.noMethod(i)
			return
		}
		x.Serve(h)
	}
}

// noMethod answers for a method that i does not know at the request's path. A path
// at which it knows none is no path of its.
func (x *chain) noMethod(i *routes.Endpoint) {
	if !i.Knows(&x.Request) {
		x.unknown()
		return
	}
	x.NoRoute(http.StatusMethodNotAllowed, "405: Method Not Allowed")
}

// unknown answers for a path that nothing is installed at: inside a version that
// is served as upstream's router does, elsewhere as the end of its delegation chain.
func (x *chain) unknown() {
	t := x.s.table.Load()
	// A version that is not served still lies below the document of its group.
	below, ok := t.NonResource(x.Path)
	switch {
	case x.IsResourceRequest && t.ServesVersion(x.Group, x.Version):
		x.NoRoute(http.StatusNotFound, "404: Page Not Found")
	case ok:
		x.Serve(below)
	case x.describeGroup():
	case x.s.config.Extensions != nil:
		x.Serve(x.s.config.Extensions)
	default:
		x.Text(http.StatusNotFound, "404 page not found")
	}
}

// acceptsCBOR reports whether the answer may have to be CBOR, which upstream's handlers
// write alone: it is not kept.
func (x *chain) acceptsCBOR() bool {
	return x.s.cbor && bytes.Contains(x.Peek("Accept"), []byte("cbor"))
}

// read answers a GET, LIST or WATCH from encoded bytes and reports whether it did:
// what it leaves goes to upstream's handlers.
func (x *chain) read(i *reads.Resource) bool {
	if i.View.Resource.Cache == nil || x.Trail.RecordsAnswers() && x.Verb != "watch" || x.acceptsCBOR() {
		return false
	}
	x.reading.Exchange, x.reading.Stitcher = &x.Exchange, x.s.stitcher
	if x.Verb != "watch" {
		return x.reading.Serve(i)
	}
	if streams.IsUpgrade(string(x.Peek("Connection")), string(x.Peek("Upgrade"))) {
		return false // a websocket: upstream's handler speaks it
	}
	x.s.streams.Watch(streams.Opening{
		Read: &x.reading, Flow: x.s.config.Flow, Join: func() streams.Right { return x.s.rights.Join(&x.Exchange) },
		MinTimeout: x.s.config.MinRequestTimeout, RequestTimeout: x.s.config.RequestTimeout,
	}, i)
	return true
}
