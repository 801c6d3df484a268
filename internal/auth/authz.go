package auth

import (
	"context"
	"fmt"

	apiserverapi "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/path"
	"k8s.io/apiserver/pkg/authorization/union"
	kubeauthorizer "k8s.io/kubernetes/pkg/kubeapiserver/authorizer"
)

// healthPaths may be read by everybody, also before the RBAC roles exist that
// say so: a probe must never see 403.
func healthPaths() []string { return []string{"/healthz", "/livez", "/readyz"} }

func (a *Auth) loadAuthorizer(ctx context.Context, c Config) error {
	config := kubeauthorizer.Config{
		VersionedInformerFactory:   c.Informers,
		AuthorizationConfiguration: &apiserverapi.AuthorizationConfiguration{},
	}
	for _, mode := range c.Modes {
		config.AuthorizationConfiguration.Authorizers = append(config.AuthorizationConfiguration.Authorizers,
			apiserverapi.AuthorizerConfiguration{
				Type: apiserverapi.AuthorizerType(mode),
				Name: kubeauthorizer.GetNameForAuthorizerMode(mode),
			})
	}
	modes, rules, err := config.New(ctx, "")
	if err != nil {
		return fmt.Errorf("auth: authorization: %w", err)
	}
	health, err := path.NewAuthorizer(healthPaths())
	if err != nil {
		return fmt.Errorf("auth: authorization: %w", err)
	}
	a.Authorizer, a.RuleResolver = union.New(readers{health}, modes), rules
	a.Gate = a.Authorizer
	if c.remembers() {
		remembered, err := newDecisions(modes, c.Informers)
		if err != nil {
			return err
		}
		a.Gate = union.New(readers{health}, remembered)
		a.decisions = remembered
	}
	return nil
}

// remembers reports whether all that decides is RBAC, whose decisions depend on
// nothing but its objects.
func (c *Config) remembers() bool { return len(c.Modes) == 1 && c.Modes[0] == ModeRBAC }

// readers lets another authorizer allow nothing but to read.
type readers struct{ authorizer.Authorizer }

// Authorize implements authorizer.Authorizer.
func (r readers) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetVerb() != "get" {
		return authorizer.DecisionNoOpinion, "", nil
	}
	return r.Authorizer.Authorize(ctx, a)
}
