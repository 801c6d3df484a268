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
	refused bool // only the start of the response is recorded, because the user is unknown
	once    sync.Once
}

// slowRequest is the minimum duration of requests whose records have latencies.
const slowRequest = 500 * time.Millisecond

// NewAuditRecord returns the record of r.
func NewAuditRecord(base context.Context, auditID string, r *request.Request) *AuditRecord {
	// Drop base's cancellation. Otherwise contexts derived from [AuditRecord.Context] would find it among the values,
	// take it for their parent's, and start a goroutine.
	ctx := audit.WithAuditContext(context.WithoutCancel(base))
	if r.Verb != "watch" {
		ctx = apirequest.WithLatencyTrackers(ctx)
	}
	audit.WithAuditID(ctx, types.UID(auditID))
	return &AuditRecord{ctx: ctx, ac: audit.AuditContextFrom(ctx), long: r.LongRunning()}
}

// Begin sets the audit policy's rule for the request, and the sink. It returns false if nothing is recorded.
func (r *AuditRecord) Begin(rule audit.RequestAuditConfig, sink audit.Sink) bool {
	audit.ObservePolicyLevel(r.ctx, rule.Level)
	if rule.Level == auditapi.LevelNone {
		return false
	}
	_ = r.ac.Init(rule, sink) // only a second Init fails
	return true
}

// Describe records the request: req has the URL that the client sent.
func (r *AuditRecord) Describe(req *http.Request, received time.Time, a authorizer.Attributes) {
	audit.LogRequestMetadata(r.ctx, req, received, a)
}

// Received records the arrival of the request. It returns false if that failed.
func (r *AuditRecord) Received() bool {
	if r.ac.ProcessEventStage(r.ctx, auditapi.StageRequestReceived) {
		return true
	}
	audit.ApiserverAuditDroppedCounter.WithContext(r.ctx).Inc()
	return false
}

// Refuse records that the request is rejected before its user is known.
func (r *AuditRecord) Refuse(reason string) {
	r.refused = true
	r.ac.SetEventStage(auditapi.StageResponseStarted)
	r.ac.SetEventResponseStatus(&metav1.Status{Message: reason})
}

// RecordsRequests reports whether the policy records the bodies of requests.
func (r *AuditRecord) RecordsRequests() bool {
	return r != nil && !r.ac.GetEventLevel().Less(auditapi.LevelRequest)
}

// RecordsResponses reports whether the policy records the objects in responses. Only upstream's handlers can do that.
func (r *AuditRecord) RecordsResponses() bool {
	return r != nil && r.ac.GetEventLevel() == auditapi.LevelRequestResponse
}

// Context returns a context that ends with ctx and has the record's values.
func (r *AuditRecord) Context(ctx context.Context) context.Context {
	if r == nil {
		return ctx
	}
	return audited{ctx, r.ctx}
}

// audited is a context that also has the values of a record. These come first, because the context of a traced request
// has another audit context, which records nothing.
type audited struct {
	context.Context
	record context.Context
}

func (a audited) Value(key any) any {
	if value := a.record.Value(key); value != nil {
		return value
	}
	return a.Context.Value(key)
}

// Authenticated records how long authentication took.
func (r *AuditRecord) Authenticated(took time.Duration) {
	if r != nil {
		apirequest.TrackAuthenticationLatency(r.ctx, took)
	}
}

// Decided records the authorizer's decision (apiserver pkg/endpoints/filters/authorization.go).
func (r *AuditRecord) Decided(decision authorizer.Decision, reason string, err error, took time.Duration) {
	if r == nil {
		return
	}
	apirequest.TrackAuthorizationLatency(r.ctx, took)
	const decisionKey, reasonKey = "authorization.k8s.io/decision", "authorization.k8s.io/reason"
	switch {
	case decision == authorizer.DecisionAllow:
		audit.AddAuditAnnotations(r.ctx, decisionKey, "allow", reasonKey, reason)
	case err != nil:
		audit.AddAuditAnnotation(r.ctx, reasonKey, "internal error")
	default:
		audit.AddAuditAnnotations(r.ctx, decisionKey, "forbid", reasonKey, reason)
	}
}

// Failed records the Status of the response, encoded by codecs as accept, an Accept header, requests.
func (r *AuditRecord) Failed(status *metav1.Status, accept string, codecs runtime.NegotiatedSerializer) {
	if r == nil {
		return
	}
	if _, ok := negotiation.NegotiateMediaTypeOptions(accept, codecs.SupportedMediaTypes(), negotiation.DefaultEndpointRestrictions); ok {
		audit.LogResponseObject(r.ctx, status, schema.GroupVersion{Version: "v1"}, legacyscheme.Codecs)
	}
}

// Annotate adds an annotation to the record.
func (r *AuditRecord) Annotate(key, value string) {
	if r != nil {
		audit.AddAuditAnnotation(r.ctx, key, value)
	}
}

// RecordStatus records the status of the response. Further calls do nothing.
func (r *AuditRecord) RecordStatus(code int) {
	if r == nil {
		return
	}
	r.once.Do(func() {
		r.ac.SetEventResponseStatusCode(int32(code))
		if r.long || r.refused {
			r.ac.ProcessEventStage(r.ctx, auditapi.StageResponseStarted)
		}
	})
}

// End records that the response is complete, or that there was none.
func (r *AuditRecord) End() {
	if r == nil || r.refused {
		return
	}
	if r.ac.GetEventResponseStatus() == nil {
		r.ac.SetEventResponseStatus(&metav1.Status{
			Code: http.StatusOK, Status: metav1.StatusSuccess, Message: "Connection closed early",
		})
		if r.long {
			r.ac.ProcessEventStage(r.ctx, auditapi.StageResponseStarted)
		}
	}
	r.addLatencies()
	r.ac.ProcessEventStage(r.ctx, auditapi.StageResponseComplete)
}

// Wrote records that a handler has written a part of its response since began.
func (r *AuditRecord) Wrote(began time.Time) {
	if r != nil {
		apirequest.TrackResponseWriteLatency(r.ctx, time.Since(began))
	}
}

// responded records how long it took to write the response, and when its encoding began; zero if upstream's handlers
// have recorded that.
func (r *AuditRecord) responded(encoding time.Time, took time.Duration) {
	if r == nil {
		return
	}
	apirequest.TrackResponseWriteLatency(r.ctx, took)
	if all, ok := apirequest.LatencyTrackersFrom(r.ctx); ok && !encoding.IsZero() {
		all.SerializationTracker.TrackDuration(time.Since(encoding))
	}
}

// age returns the time since the arrival of the request.
func (r *AuditRecord) age() time.Duration {
	return time.Since(r.ac.GetEventRequestReceivedTimestamp().Time)
}

// addLatencies records the latencies of a slow request.
func (r *AuditRecord) addLatencies() {
	total := r.age()
	if total <= slowRequest {
		return
	}
	parts := apirequest.AuditAnnotationsFromLatencyTrackers(r.ctx)
	if len(parts) == 0 {
		return
	}
	parts["apiserver.latency.k8s.io/total"] = total.String()
	audit.AddAuditAnnotationsMap(r.ctx, parts)
}

// Panicked records that serving the request panicked with p.
func (r *AuditRecord) Panicked(p any) {
	if r == nil || r.refused {
		return
	}
	r.ac.SetEventResponseStatus(&metav1.Status{
		Code: http.StatusInternalServerError, Status: metav1.StatusFailure,
		Reason: metav1.StatusReasonInternalError, Message: fmt.Sprintf("APIServer panic'd: %v", p),
	})
	r.ac.ProcessEventStage(r.ctx, auditapi.StagePanic)
}
