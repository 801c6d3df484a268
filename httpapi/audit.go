package httpapi

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/audit"

	"github.com/larder-io/larder/httpapi/exchange"
)

// auditor records requests in the audit log.
type auditor struct {
	policy audit.PolicyRuleEvaluator // nil records nothing
	sink   audit.Sink
}

// asSent returns the request with the URL that the client has sent, for the audit record.
func asSent(x *apiCall) *http.Request {
	req := *x.HTTP()
	if u, err := x.SentURL(); err == nil { // the parser has accepted the target
		req.URL = u
	}
	return &req
}

// begin begins the audit record, if there is a policy.
func (a *auditor) begin(x *apiCall) {
	if a.policy != nil {
		x.Audit = exchange.NewAuditRecord(x.Server, x.AuditID, &x.Request)
	}
}

// evaluate applies the audit policy. If it records nothing of the request, evaluate drops the record.
func (a *auditor) evaluate(x *apiCall) {
	attributes := x.attributes()
	rule := a.policy.EvaluatePolicyRule(attributes)
	if !x.Audit.Begin(rule, a.sink) {
		x.Audit = nil
		return
	}
	x.Audit.Describe(asSent(x), x.Received, attributes)
}

// receive records the arrival of the request. If that fails, the request is not served.
func (a *auditor) receive(x *apiCall) bool {
	if x.Audit == nil {
		return true
	}
	began := time.Now()
	if a.evaluate(x); x.Audit == nil || x.Audit.Received() {
		x.audited = time.Since(began)
		return true
	}
	x.Audit = nil
	x.InternalError(errors.New("failed to store audit event"))
	return false
}

// recordRejected records a request that is rejected before its client is authenticated.
func (a *auditor) recordRejected(x *apiCall, reason string) {
	if x.Audit == nil {
		return
	}
	if a.evaluate(x); x.Audit != nil {
		x.Audit.Refuse(reason)
	}
}

// reject rejects a request with err before its client is authenticated, and returns false.
func (a *auditor) reject(x *apiCall, err error) bool {
	a.recordRejected(x, err.Error())
	x.Fail(err)
	return false
}

// timedOut rejects a request that was not authorized before its deadline.
func (a *auditor) timedOut(x *apiCall) {
	if x.User == nil {
		a.recordRejected(x, attempted(x))
	}
	x.Fail(exchange.ErrTimeout)
}

// attempted lists the kinds of credentials that a rejected request had.
func attempted(x *apiCall) string {
	req := x.HTTP()
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
