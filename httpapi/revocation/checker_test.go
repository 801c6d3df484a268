package revocation

import (
	"context"
	"crypto/sha256"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/larder-io/larder/internal/auth"
)

// TestVerdictsOfAuthorizers checks which verdict follows from an authorizer's decision. A webhook whose match conditions
// fail counts as a webhook without an opinion, because the conditions fail each time. Other errors decide nothing, unless
// the request is allowed.
func TestVerdictsOfAuthorizers(t *testing.T) {
	failing := utilerrors.NewAggregate([]error{errors.New("cel evaluation error: expression 'x' resulted in error: no such key: namespace")})
	const allow, noOpinion = authorizer.DecisionAllow, authorizer.DecisionNoOpinion
	for name, c := range map[string]struct {
		decision authorizer.Decision
		err      error
		want     verdict
	}{
		"allowed":                    {allow, nil, allowed},
		"one fails, another allows":  {allow, errUnavailable, allowed},
		"no error":                   {noOpinion, nil, denied},
		"a condition fails":          {noOpinion, utilerrors.NewAggregate([]error{failing}), denied},
		"two webhooks' conditions":   {noOpinion, utilerrors.NewAggregate([]error{failing, failing}), denied},
		"a webhook fails":            {noOpinion, utilerrors.NewAggregate([]error{errUnavailable}), undecided},
		"one condition, one webhook": {noOpinion, utilerrors.NewAggregate([]error{failing, errUnavailable}), undecided},
		"one webhook, one condition": {noOpinion, utilerrors.NewAggregate([]error{errUnavailable, failing}), undecided},
		"the authorizer fails":       {noOpinion, errUnavailable, undecided},
		"a webhook must be called":   {noOpinion, auth.ErrRemote, remote},
		"nothing is synced":          {noOpinion, auth.ErrNotSynced, undecided},
		"not synced, and a webhook":  {noOpinion, utilerrors.NewAggregate([]error{auth.ErrRemote, auth.ErrNotSynced}), undecided},
	} {
		gate := authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
			return c.decision, "", c.err
		})
		for _, impersonates := range []bool{false, true} {
			of := &credential{request: httptest.NewRequest("GET", "/", nil), who: jane, impersonates: impersonates}
			of.request.Header = http.Header{"Impersonate-User": {"jim"}}
			about := &question{held: &right{of: of, info: &apirequest.RequestInfo{Verb: "watch"}}, who: jane}
			about.attributes = authorizer.AttributesRecord{User: jane, Verb: "watch"}
			j := newChecker(nil, nil, gate)
			if v := j.may(t.Context(), about, time.Now()); v != c.want {
				t.Errorf("%s, impersonates %v: verdict %d, want %d", name, impersonates, v, c.want)
			}
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			if v := j.may(ended, about, time.Now()); v == denied && c.err != nil {
				t.Errorf("%s, impersonates %v, with a canceled context: verdict %d, although there is an error", name, impersonates, v)
			}
		}
	}
}

// TestPanicsDecideNothing checks that an authenticator or authorizer that panics ends no watch, and is called again.
func TestPanicsDecideNothing(t *testing.T) {
	panics := func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) { panic("a defect") }
	for name, prepare := range map[string]func(*Rights, *credential){
		"the authenticator": func(r *Rights, _ *credential) {
			r.config.Revocation.Authenticator = authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) { panic("a defect") })
		},
		"the authorizer": func(r *Rights, _ *credential) { r.config.Authorizer = authorizer.AuthorizerFunc(panics) },
		"the authorizer of impersonation": func(r *Rights, c *credential) {
			r.config.Authorizer, c.impersonates = authorizer.AuthorizerFunc(panics), true
		},
	} {
		r := newRights(new(fakeAccess))
		c, held := janesWatch()
		prepare(r, c)
		r.enter(c, [sha256.Size]byte{}, "", held)
		now := time.Now()
		r.runRound(t, now)
		if held.Lost() {
			t.Errorf("%s panics: the watch ended", name)
		}
		if due := r.newRound(t.Context(), now.Add(interval)).claim(); len(due) != 1 {
			t.Errorf("%s panics: the next round has %d checks, want 1", name, len(due))
		}
	}
}
