package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	auditapi "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// trail is what is recorded of one request. Stages, and what is told in each, are those
// of apiserver pkg/endpoints/filters, audit.go, authn_audit.go and request_deadline.go.
//
// It belongs to whoever serves the request and is handed on with it. A nil trail records
// nothing.
type trail struct {
	ctx     context.Context // has ac, and what measures latencies of all but watches
	ac      *audit.AuditContext
	long    bool // the beginning of the answer is recorded, too
	refused bool // only the beginning is: nobody knows yet who asks
	once    sync.Once
}

// slowRequest is from when on it is recorded where the time of a request went.
const slowRequest = 500 * time.Millisecond

// openTrail begins a trail, if anything is recorded at all.
func (x *exchange) openTrail() {
	if x.s.config.AuditPolicy == nil {
		return
	}
	ctx := audit.WithAuditContext(x.s.base)
	if x.Verb != "watch" {
		ctx = apirequest.WithLatencyTrackers(ctx)
	}
	audit.WithAuditID(ctx, types.UID(x.auditID))
	x.trail = &trail{ctx: ctx, ac: audit.AuditContextFrom(ctx), long: x.LongRunning()}
}

// judge lets the policy say how much is recorded of the request. What is not recorded
// has no trail from here on.
func (x *exchange) judge() {
	t, attributes := x.trail, x.attributes()
	rule := x.s.config.AuditPolicy.EvaluatePolicyRule(attributes)
	audit.ObservePolicyLevel(t.ctx, rule.Level)
	if rule.Level == auditapi.LevelNone {
		x.trail = nil
		return
	}
	_ = t.ac.Init(rule, x.s.config.Audit) // the only error is that of a second one
	audit.LogRequestMetadata(t.ctx, x.asSent(), x.received, attributes)
}

// asSent is the request with the URL that the client sent, for the record.
func (x *exchange) asSent() *http.Request {
	req := *x.http()
	if u, err := x.SentURL(); err == nil { // which was read already
		req.URL = u
	}
	return &req
}

// audit records that the request came. One that must be recorded and cannot be is not
// served.
func (x *exchange) audit() bool {
	if x.trail == nil {
		return true
	}
	if x.judge(); x.trail == nil || x.trail.ac.ProcessEventStage(x.trail.ctx, auditapi.StageRequestReceived) {
		return true
	}
	audit.ApiserverAuditDroppedCounter.WithContext(x.trail.ctx).Inc()
	x.trail = nil
	x.internalError(errors.New("failed to store audit event"))
	return false
}

// auditRefusal records a request that is refused before it is known who asks.
func (x *exchange) auditRefusal(reason string) {
	if x.trail == nil {
		return
	}
	if x.judge(); x.trail == nil {
		return
	}
	x.trail.refused = true
	x.trail.ac.SetEventStage(auditapi.StageResponseStarted)
	x.trail.ac.SetEventResponseStatus(&metav1.Status{Message: reason})
}

// attempted says which credentials the request had, none of which was accepted.
func (x *exchange) attempted() string {
	req := x.http()
	var methods []string
	if _, _, ok := req.BasicAuth(); ok {
		methods = append(methods, "basic")
	}
	scheme, _, ok := strings.Cut(strings.TrimSpace(req.Header.Get("Authorization")), " ")
	if ok && strings.EqualFold(scheme, "bearer") {
		methods = append(methods, "bearer")
	}
	if strings.TrimSpace(x.Query.Get("access_token")) != "" {
		methods = append(methods, "access_token")
	}
	if req.TLS != nil && len(req.TLS.PeerCertificates) > 0 {
		methods = append(methods, "x509")
	}
	if len(methods) == 0 {
		return "Authentication failed, no credentials provided"
	}
	return "Authentication failed, attempted: " + strings.Join(methods, ", ")
}

// takeTrail hands the trail to who serves the request from here on.
func (x *exchange) takeTrail() *trail {
	t := x.trail
	x.trail = nil
	return t
}

// closeTrail records the answer, unless it is long: then it is recorded when it has
// been sent.
func (x *exchange) closeTrail() {
	if x.trail == nil {
		return
	}
	x.trail.answer(x.fast.Response.StatusCode())
	if x.body == nil || x.size != unknownSize && x.size <= recordSize {
		x.takeTrail().end()
	}
}

// recordsAnswers reports whether objects that are answered are recorded, which
// upstream's handlers do.
func (t *trail) recordsAnswers() bool {
	return t != nil && t.ac.GetEventLevel() == auditapi.LevelRequestResponse
}

// context returns one that ends with ctx and knows the trail.
func (t *trail) context(ctx context.Context) context.Context {
	if t == nil {
		return ctx
	}
	return audited{ctx, t.ctx}
}

// audited is a context that knows what another one does.
type audited struct {
	context.Context
	trail context.Context
}

// Value implements context.Context.
func (c audited) Value(key any) any {
	if value := c.Context.Value(key); value != nil {
		return value
	}
	return c.trail.Value(key)
}

// authenticated records how long that took.
func (t *trail) authenticated(took time.Duration) {
	if t != nil {
		apirequest.TrackAuthenticationLatency(t.ctx, took)
	}
}

// decided records what the authorizer said (apiserver
// pkg/endpoints/filters/authorization.go).
func (t *trail) decided(decision authorizer.Decision, reason string, err error, took time.Duration) {
	if t == nil {
		return
	}
	apirequest.TrackAuthorizationLatency(t.ctx, took)
	const decisionKey, reasonKey = "authorization.k8s.io/decision", "authorization.k8s.io/reason"
	switch {
	case decision == authorizer.DecisionAllow:
		audit.AddAuditAnnotations(t.ctx, decisionKey, "allow", reasonKey, reason)
	case err != nil:
		audit.AddAuditAnnotation(t.ctx, reasonKey, "internal error")
	default:
		audit.AddAuditAnnotations(t.ctx, decisionKey, "forbid", reasonKey, reason)
	}
}

// failed records the Status that is answered to a client that accepts what accept says.
func (t *trail) failed(status *metav1.Status, accept string) {
	if t == nil {
		return
	}
	if _, ok := negotiation.NegotiateMediaTypeOptions(accept, legacyscheme.Codecs.SupportedMediaTypes(), negotiation.DefaultEndpointRestrictions); ok {
		audit.LogResponseObject(t.ctx, status, schema.GroupVersion{Version: "v1"}, legacyscheme.Codecs)
	}
}

// answer records with which status the answer begins. The first one counts.
func (t *trail) answer(code int) {
	if t == nil {
		return
	}
	t.once.Do(func() {
		t.ac.SetEventResponseStatusCode(int32(code))
		if t.long || t.refused {
			t.ac.ProcessEventStage(t.ctx, auditapi.StageResponseStarted)
		}
	})
}

// end records that the answer is complete, or that there was none.
func (t *trail) end() {
	if t == nil || t.refused {
		return
	}
	if t.ac.GetEventResponseStatus() == nil {
		t.ac.SetEventResponseStatus(&metav1.Status{
			Code: http.StatusOK, Status: metav1.StatusSuccess, Message: "Connection closed early",
		})
		if t.long {
			t.ac.ProcessEventStage(t.ctx, auditapi.StageResponseStarted)
		}
	}
	t.addLatencies()
	t.ac.ProcessEventStage(t.ctx, auditapi.StageResponseComplete)
}

// addLatencies records where the time of a slow request went.
func (t *trail) addLatencies() {
	total := time.Since(t.ac.GetEventRequestReceivedTimestamp().Time)
	if total <= slowRequest {
		return
	}
	parts := apirequest.AuditAnnotationsFromLatencyTrackers(t.ctx)
	if len(parts) == 0 {
		return
	}
	parts["apiserver.latency.k8s.io/total"] = total.String()
	audit.AddAuditAnnotationsMap(t.ctx, parts)
}

// panicked records that who served the request panicked with p.
func (t *trail) panicked(p any) {
	if t == nil || t.refused {
		return
	}
	t.ac.SetEventResponseStatus(&metav1.Status{
		Code: http.StatusInternalServerError, Status: metav1.StatusFailure,
		Reason: metav1.StatusReasonInternalError, Message: fmt.Sprintf("APIServer panic'd: %v", p),
	})
	t.ac.ProcessEventStage(t.ctx, auditapi.StagePanic)
}
