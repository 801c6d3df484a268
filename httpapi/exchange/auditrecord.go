package exchange

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	auditapi "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/larder-io/larder/httpapi/request"
)

// AuditRecord records one request in the audit log. Its stages are those of apiserver
// pkg/endpoints/filters, audit.go, authn_audit.go and request_deadline.go.
//
// It belongs to the goroutine that serves the request. A nil AuditRecord records nothing.
type AuditRecord struct {
	ctx     context.Context // has ac and, except for watches, upstream's latency trackers
	ac      *audit.AuditContext
	long    bool // the start of the response is recorded, too
	refused bool // only the start of the response is recorded: the user is not known
	once    sync.Once
}

// slowRequest is the duration from which the record of a request has its latencies.
const slowRequest = 500 * time.Millisecond

// NewAuditRecord returns the record of r.
func NewAuditRecord(base context.Context, auditID string, r *request.Request) *AuditRecord {
	// Without base's cancellation: otherwise contexts derived from [AuditRecord.Context] would find it
	// among the values, take it for their parent's, and start a goroutine.
	ctx := audit.WithAuditContext(context.WithoutCancel(base))
	if r.Verb != "watch" {
		ctx = apirequest.WithLatencyTrackers(ctx)
	}
	audit.WithAuditID(ctx, types.UID(auditID))
	return &AuditRecord{ctx: ctx, ac: audit.AuditContextFrom(ctx), long: r.LongRunning()}
}

// Begin sets the audit policy's rule for the request, and the sink. It returns false if nothing is recorded.
func (t *AuditRecord) Begin(rule audit.RequestAuditConfig, sink audit.Sink) bool {
	audit.ObservePolicyLevel(t.ctx, rule.Level)
	if rule.Level == auditapi.LevelNone {
		return false
	}
	_ = t.ac.Init(rule, sink) // only a second Init fails
	return true
}

// Describe records the request: req has the URL that the client sent.
func (t *AuditRecord) Describe(req *http.Request, received time.Time, a authorizer.Attributes) {
	audit.LogRequestMetadata(t.ctx, req, received, a)
}

// Received records the arrival of the request. It returns false if that failed.
func (t *AuditRecord) Received() bool {
	if t.ac.ProcessEventStage(t.ctx, auditapi.StageRequestReceived) {
		return true
	}
	audit.ApiserverAuditDroppedCounter.WithContext(t.ctx).Inc()
	return false
}

// Refuse records that the request is refused before its user is known.
func (t *AuditRecord) Refuse(reason string) {
	t.refused = true
	t.ac.SetEventStage(auditapi.StageResponseStarted)
	t.ac.SetEventResponseStatus(&metav1.Status{Message: reason})
}

// RecordsRequests reports whether the policy records the bodies of requests.
func (t *AuditRecord) RecordsRequests() bool {
	return t != nil && !t.ac.GetEventLevel().Less(auditapi.LevelRequest)
}

// RecordsAnswers reports whether the policy records the objects in answers. Only upstream's handlers can do
// that.
func (t *AuditRecord) RecordsAnswers() bool {
	return t != nil && t.ac.GetEventLevel() == auditapi.LevelRequestResponse
}

// Context returns a context that ends with ctx and has the record's values.
func (t *AuditRecord) Context(ctx context.Context) context.Context {
	if t == nil {
		return ctx
	}
	return audited{ctx, t.ctx}
}

// audited is a context that also has the values of a record. These come first: the context of a traced
// request has an audit context of its own, which records nothing.
type audited struct {
	context.Context
	record context.Context
}

func (c audited) Value(key any) any {
	if value := c.record.Value(key); value != nil {
		return value
	}
	return c.Context.Value(key)
}

// Authenticated records how long authentication took.
func (t *AuditRecord) Authenticated(took time.Duration) {
	if t != nil {
		apirequest.TrackAuthenticationLatency(t.ctx, took)
	}
}

// Decided records the authorizer's decision (apiserver pkg/endpoints/filters/authorization.go).
func (t *AuditRecord) Decided(decision authorizer.Decision, reason string, err error, took time.Duration) {
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

// Failed records the Status that answers a request with the Accept header accept, encoded by codecs.
func (t *AuditRecord) Failed(status *metav1.Status, accept string, codecs runtime.NegotiatedSerializer) {
	if t == nil {
		return
	}
	if _, ok := negotiation.NegotiateMediaTypeOptions(accept, codecs.SupportedMediaTypes(), negotiation.DefaultEndpointRestrictions); ok {
		audit.LogResponseObject(t.ctx, status, schema.GroupVersion{Version: "v1"}, legacyscheme.Codecs)
	}
}

// Annotate adds an annotation to the record.
func (t *AuditRecord) Annotate(key, value string) {
	if t != nil {
		audit.AddAuditAnnotation(t.ctx, key, value)
	}
}

// Answer records the status of the answer. The first call counts.
func (t *AuditRecord) Answer(code int) {
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

// End records that the answer is complete, or that there was none.
func (t *AuditRecord) End() {
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

// Wrote records that a handler has written a part of its answer since began.
func (t *AuditRecord) Wrote(began time.Time) {
	if t != nil {
		apirequest.TrackResponseWriteLatency(t.ctx, time.Since(began))
	}
}

// answered records how long it took to write the answer, and since when it was encoded; zero if
// upstream's handlers have recorded that.
func (t *AuditRecord) answered(encoding time.Time, took time.Duration) {
	if t == nil {
		return
	}
	apirequest.TrackResponseWriteLatency(t.ctx, took)
	if all, ok := apirequest.LatencyTrackersFrom(t.ctx); ok && !encoding.IsZero() {
		all.SerializationTracker.TrackDuration(time.Since(encoding))
	}
}

// age returns the time since the arrival of the request.
func (t *AuditRecord) age() time.Duration {
	return time.Since(t.ac.GetEventRequestReceivedTimestamp().Time)
}

// addLatencies records the latencies of a slow request.
func (t *AuditRecord) addLatencies() {
	total := t.age()
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

// Panicked records that serving the request panicked with p.
func (t *AuditRecord) Panicked(p any) {
	if t == nil || t.refused {
		return
	}
	t.ac.SetEventResponseStatus(&metav1.Status{
		Code: http.StatusInternalServerError, Status: metav1.StatusFailure,
		Reason: metav1.StatusReasonInternalError, Message: fmt.Sprintf("APIServer panic'd: %v", p),
	})
	t.ac.ProcessEventStage(t.ctx, auditapi.StagePanic)
}
