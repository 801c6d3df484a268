package httpapi

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/google/uuid"

	"github.com/larder-io/larder/httpapi/identity"
	"github.com/larder-io/larder/httpapi/request"
)

// parser reads requests.
type parser struct {
	hsts        string // the Strict-Transport-Security field of every response; "" sends none
	credentials *identity.Headers
}

// parse parses the request. If that fails, it rejects the request and returns false.
func (p *parser) parse(x *apiCall) bool {
	x.AuditID = string(x.Peek("Audit-Id"))
	if x.AuditID == "" {
		x.AuditID = uuid.NewString()
	}
	x.HSTS = p.hsts
	x.CommonHeaders()
	facts, ok := x.Inspect()
	if !ok {
		return false
	}
	x.impersonates, x.otherCredentials = facts.Impersonates, facts.OtherCredentials
	x.otherCredentials = x.otherCredentials || p.credentials.HasProxyFields(x.Carrier)
	err := x.Parse(string(x.Carrier.Method()), string(x.Carrier.Target()))
	if errors.Is(err, request.ErrTarget) {
		x.Text(http.StatusBadRequest, "400 Bad Request")
		x.Closing = true
		return false
	}
	if err != nil {
		x.InternalError(fmt.Errorf("failed to create RequestInfo: %w", err))
		x.Del("Cache-Control") // upstream fails before it sets it
		return false
	}
	return true
}
