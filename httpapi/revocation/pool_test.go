package revocation

import (
	"context"
	"crypto/sha256"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/larder-io/larder/httpapi/request"
	"github.com/larder-io/larder/internal/auth"
)

// TestSlowWebhooksDecide checks that a webhook ends watches although it takes five seconds for each answer.
func TestSlowWebhooksDecide(t *testing.T) {
	for name, refuses := range map[string]struct{ token, access bool }{"token": {token: true}, "access": {access: true}} {
		synctest.Test(t, func(t *testing.T) {
			answer := func(ctx context.Context) error {
				select {
				case <-time.After(5 * time.Second):
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			r := newRights(&fakeAccess{remote: true})
			r.config.Revocation.LocalAuthenticator = authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
				return nil, false, auth.ErrRemote
			})
			r.config.Revocation.LocalAuthorizer = authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
				return authorizer.DecisionNoOpinion, "", auth.ErrRemote
			})
			r.config.Revocation.Authenticator = authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
				err := answer(req.Context())
				return &authenticator.Response{User: jane}, err == nil && !refuses.token, err
			})
			r.config.Authorizer = authorizer.AuthorizerFunc(func(ctx context.Context, _ authorizer.Attributes) (authorizer.Decision, string, error) {
				if err := answer(ctx); err != nil || refuses.access {
					return authorizer.DecisionNoOpinion, "", err
				}
				return authorizer.DecisionAllow, "", nil
			})
			held := new(right)
			held.attributes.Request, held.attributes.User = &request.Action{Verb: "watch"}, jane
			c := &credential{request: httptest.NewRequest("GET", "/", nil), who: jane, ties: auth.Dependencies{Remote: true}}
			r.enter(c, [sha256.Size]byte{}, "", held)
			r.look(t.Context(), time.Now())
			r.running.Wait()
			if !held.Lost() {
				t.Errorf("%s: the watch goes on", name)
			}
		})
	}
}

// TestSlowProvidersAreAskedOnce checks that rounds do not authenticate a credential again while a provider is being
// asked about it, although its rights are authorized meanwhile.
func TestSlowProvidersAreAskedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := new(fakeAccess)
		r := newRights(j)
		var changes, asked int
		r.config.Revocation.AuthorizerChanges = func() (uint64, uint64) { return uint64(changes), 0 }
		r.config.Revocation.LocalAuthenticator = authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
			return nil, false, auth.ErrRemote
		})
		r.config.Revocation.Authenticator = authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
			asked++
			time.Sleep(5 * time.Second)
			return j.AuthenticateRequest(req)
		})
		c, held := janesWatch()
		r.enter(c, [sha256.Size]byte{}, "", held)
		for range 4 {
			changes++
			r.look(t.Context(), time.Now())
			synctest.Wait()
			if held.all != uint64(changes) {
				t.Errorf("change %d: the right was not authorized again", changes)
			}
		}
		r.running.Wait()
		if asked != 1 {
			t.Errorf("the provider was asked %d times at once", asked)
		}
	})
}
