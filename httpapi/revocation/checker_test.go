package revocation

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/larder-io/larder/httpapi/request"
)

// TestFailingMatchConditionsRefuse checks that a webhook whose match conditions fail counts as one without an
// opinion, because they fail each time. Other errors decide nothing.
func TestFailingMatchConditionsRefuse(t *testing.T) {
	failing := utilerrors.NewAggregate([]error{errors.New("cel evaluation error: expression 'x' resulted in error: no such key: namespace")})
	for name, c := range map[string]struct {
		err  error
		want verdict
	}{
		"no error":                    {nil, denied},
		"a condition fails":           {utilerrors.NewAggregate([]error{failing}), denied},
		"two webhooks' conditions":    {utilerrors.NewAggregate([]error{failing, failing}), denied},
		"a webhook does not answer":   {utilerrors.NewAggregate([]error{errMute}), undecided},
		"one condition, one webhook":  {utilerrors.NewAggregate([]error{failing, errMute}), undecided},
		"one webhook, one condition":  {utilerrors.NewAggregate([]error{errMute, failing}), undecided},
		"no authorizer has an answer": {errMute, undecided},
	} {
		gate := authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
			return authorizer.DecisionNoOpinion, "", c.err
		})
		for _, impersonates := range []bool{false, true} {
			of := &credential{request: httptest.NewRequest("GET", "/", nil), who: jane, impersonates: impersonates}
			of.request.Header = http.Header{"Impersonate-User": {"jim"}}
			about := &question{held: &right{of: of}, who: jane}
			about.attributes.Request, about.attributes.User = &request.Action{Verb: "watch"}, jane
			j := newChecker(nil, nil, gate)
			if v := j.may(t.Context(), about, time.Now()); v != c.want {
				t.Errorf("%s, impersonates %v: verdict %d, want %d", name, impersonates, v, c.want)
			}
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			if v := j.may(ended, about, time.Now()); c.err != nil && v != undecided {
				t.Errorf("%s, impersonates %v, after its time: verdict %d", name, impersonates, v)
			}
		}
	}
}
