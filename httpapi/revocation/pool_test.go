package revocation

import (
	"context"
	"crypto/sha256"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/larder-io/larder/internal/auth"
)

// TestSlowWebhooksDecide checks that a webhook ends watches although it takes five seconds for each response.
func TestSlowWebhooksDecide(t *testing.T) {
	for name, refuses := range map[string]struct{ token, access bool }{"token": {token: true}, "access": {access: true}} {
		synctest.Test(t, func(t *testing.T) {
			respond := func(ctx context.Context) error {
				select {
				case <-time.After(5 * time.Second):
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			r := newRights(&fakeAccess{remote: true})
			r.decideRemotely()
			r.config.Revocation.Authenticator = authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
				err := respond(req.Context())
				return &authenticator.Response{User: jane}, err == nil && !refuses.token, err
			})
			r.config.Authorizer = authorizer.AuthorizerFunc(func(ctx context.Context, _ authorizer.Attributes) (authorizer.Decision, string, error) {
				if err := respond(ctx); err != nil || refuses.access {
					return authorizer.DecisionNoOpinion, "", err
				}
				return authorizer.DecisionAllow, "", nil
			})
			c, held := janesWatch()
			c.ties.Remote = true
			r.enter(c, [sha256.Size]byte{}, "", held)
			r.runRound(t, time.Now())
			if !held.Lost() {
				t.Errorf("%s refused: the watch did not lose its right", name)
			}
		})
	}
}

// TestSlowServicesAreCalledOnce checks that rounds do not call a provider or webhook again while the same call is in
// progress. A change meanwhile causes another call afterwards.
func TestSlowServicesAreCalledOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := new(fakeAccess)
		r := newRights(j)
		var changes uint64
		slow := func(what string, running *int, takes time.Duration) {
			if *running++; *running > 1 {
				t.Errorf("%d calls of the %s at once, want 1", *running, what)
			}
			time.Sleep(takes)
			*running--
		}
		var identities, permissions int
		r.config.Revocation.AuthorizerChanges = func() uint64 { return changes }
		r.decideRemotely()
		r.config.Revocation.Authenticator = authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
			slow("provider", &identities, 5*time.Second)
			return j.AuthenticateRequest(req)
		})
		r.config.Authorizer = authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			slow("webhook", &permissions, 3*time.Second/2)
			return j.Authorize(ctx, a)
		})
		c, held := janesWatch()
		r.enter(c, [sha256.Size]byte{}, "", held)
		look := func() {
			r.look(t.Context(), time.Now())
			synctest.Wait()
		}
		for range 4 {
			changes++
			look()
			look()
			time.Sleep(time.Second)
		}
		r.running.Wait()
		look()
		r.running.Wait()
		if held.all != changes {
			t.Error("the right was not authorized again after changes during a call of the webhook")
		}
	})
}

// TestTokensThatThisProcessNoLongerAccepts checks that watches end when this process no longer accepts their token. An
// unreachable provider that might accept the token does not matter.
func TestTokensThatThisProcessNoLongerAccepts(t *testing.T) {
	for _, local := range []bool{false, true} {
		r := newRights(&fakeAccess{authnFailing: true})
		r.config.Revocation.LocalAuthenticator = authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
			if local {
				return &authenticator.Response{User: jane}, true, nil
			}
			return nil, false, auth.ErrRemote
		})
		c, held := janesWatch()
		r.enter(c, [sha256.Size]byte{}, "", held)
		r.runRound(t, time.Now())
		accepted := local
		local, c.asked = false, false
		r.runRound(t, time.Now().Add(interval))
		if held.Lost() != accepted {
			t.Errorf("accepted before: %t, lost: %t; want both or neither", accepted, held.Lost())
		}
	}
}
