package httpapi

import (
	"errors"
	"net/http"
	"strings"

	"github.com/larder-io/larder/httpapi/exchange"
)

// asSent is the request with the URL that the client sent, for the record.
func (x *chain) asSent() *http.Request {
	req := *x.HTTP()
	if u, err := x.SentURL(); err == nil { // which was read already
		req.URL = u
	}
	return &req
}

// openTrail begins a trail, if anything is recorded at all.
func (x *chain) openTrail() {
	if x.s.config.AuditPolicy != nil {
		x.Trail = exchange.NewTrail(x.Base(), x.AuditID, &x.Request)
	}
}

// judge lets the policy say how much is recorded of the request. What is not recorded
// has no trail from here on.
func (x *chain) judge() {
	attributes := x.attributes()
	rule := x.s.config.AuditPolicy.EvaluatePolicyRule(attributes)
	if !x.Trail.Begin(rule, x.s.config.Audit) {
		x.Trail = nil
		return
	}
	x.Trail.Describe(x.asSent(), x.Received, attributes)
}

// audit records that the request came. One that must be recorded and cannot be is not
// served.
func (x *chain) audit() bool {
	if x.Trail == nil {
		return true
	}
	if x.judge(); x.Trail == nil || x.Trail.Received() {
		return true
	}
	x.Trail = nil
	x.InternalError(errors.New("failed to store audit event"))
	return false
}

// auditRefusal records a request that is refused before it is known who asks.
func (x *chain) auditRefusal(reason string) {
	if x.Trail == nil {
		return
	}
	if x.judge(); x.Trail != nil {
		x.Trail.Refuse(reason)
	}
}

// attempted says which credentials the request had, none of which was accepted.
func (x *chain) attempted() string {
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
