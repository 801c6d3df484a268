package httpapi

import (
	"strings"

	"github.com/larder-io/larder/httpapi/costs"
)

// accountFinder finds the account that is charged for a request.
type accountFinder struct{ ledger *costs.Ledger }

// find sets the account of x, unless it is set.
func (p *accountFinder) find(x *apiCall) {
	if x.Account != nil {
		return
	}
	c := costs.Caller{Agent: x.Peek("User-Agent"), Group: x.Group, Resource: x.Resource, Subresource: x.Subresource, Verb: x.Verb}
	if x.User != nil {
		c.User = x.User.GetName()
	}
	if !x.IsResourceRequest {
		c.Group, c.Subresource, c.Resource = "", "", firstPart(x.Path)
	}
	x.Account = p.ledger.Account(c)
}

// firstPart returns a path up to the second slash.
func firstPart(path string) string {
	if path == "" {
		return ""
	}
	first, _, _ := strings.Cut(path[1:], "/")
	return path[:1+len(first)]
}
