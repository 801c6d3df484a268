package httpapi

import (
	"context"
	"net/http"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/larder-io/larder/httpapi/routes"
)

// TestDeadlineOfPreparation: authentication, impersonation and authorization may take no
// longer than the request has; those of a long-running one no longer than of any other.
func TestDeadlineOfPreparation(t *testing.T) {
	never := func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}
	known := authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
		return &authenticator.Response{User: &user.DefaultInfo{Name: "jane"}}, true, nil
	})
	slowAuthenticator := authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
		return nil, false, never(req.Context())
	})
	slowAuthorizer := authorizer.AuthorizerFunc(func(ctx context.Context, _ authorizer.Attributes) (authorizer.Decision, string, error) {
		return authorizer.DecisionNoOpinion, "", never(ctx)
	})
	for name, c := range map[string]struct {
		authenticator authenticator.Request
		header        http.Header
	}{
		"authentication": {authenticator: slowAuthenticator},
		"impersonation":  {authenticator: known, header: http.Header{"Impersonate-User": {"joe"}}},
		"authorization":  {authenticator: known},
	} {
		for kind, path := range map[string]string{
			"asked for": "/x?timeout=20ms", "the server's": "/x", "watch": "/api/v1/pods?watch=1",
		} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				config := Config{Authenticator: c.authenticator, Authorizer: slowAuthorizer, RequestTimeout: time.Hour}
				if kind != "asked for" {
					config.RequestTimeout = 20 * time.Millisecond
				}
				f := newFront(t, config, func(routes *routes.Table) { routes.Handle("/x", http.HandlerFunc(echo)) })
				req, err := http.NewRequest(http.MethodGet, "https://"+f.addr+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				for key, value := range c.header {
					req.Header[key] = value
				}
				resp, err := f.client(t).Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				if resp.StatusCode != http.StatusGatewayTimeout {
					t.Errorf("answered %d", resp.StatusCode)
				}
			})
		}
	}
}
