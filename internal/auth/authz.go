package auth

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"reflect"
	"slices"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/util/sets"
	authzapi "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"
	authorizationmetrics "k8s.io/apiserver/pkg/authorization/metrics"
	"k8s.io/apiserver/pkg/authorization/union"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/apiserver/pkg/server/options/authorizationconfig/metrics"
	"k8s.io/apiserver/pkg/util/filesystem"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/auth/authorizer/abac"
	"k8s.io/kubernetes/pkg/auth/nodeidentifier"
	kubeauthorizer "k8s.io/kubernetes/pkg/kubeapiserver/authorizer"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer/modes"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/node"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// chain asks upstream's authorizers in the configured order, the super-user's group
// first. It does what kubernetes pkg/kubeapiserver/authorizer/reload.go does, whose
// authorizers cannot be told apart from outside: so RBAC's decisions alone are
// remembered.
type chain struct {
	config   *kubeauthorizer.Config
	serverID string
	compiler authorizationcel.Compiler // nil without a file
	stays    map[authzapi.AuthorizerType]link
	required sets.Set[authzapi.AuthorizerType] // that a file must name

	graph     *graph     // nil without the Node authorizer
	decisions *decisions // nil without RBAC

	// The rest but current belongs to the goroutine that calls run.
	current  atomic.Pointer[links]
	changes  atomic.Uint64 // of current
	read     []byte
	accepted *authzapi.AuthorizationConfiguration
}

// link is one authorizer of a chain.
type link struct {
	asks  authorizer.Authorizer
	door  authorizer.Authorizer // the same, but for what it remembers
	rules authorizer.RuleResolver
}

// links are a chain at one time. They are immutable.
type links struct {
	all, door authorizer.Authorizer
	near      authorizer.Authorizer // as door, up to the first webhook
	rules     authorizer.RuleResolver
	remote    bool // there are webhooks
}

// Authorize implements authorizer.Authorizer.
func (c *chain) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	return c.current.Load().all.Authorize(ctx, a)
}

// RulesFor implements authorizer.RuleResolver.
func (c *chain) RulesFor(ctx context.Context, u user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return c.current.Load().rules.RulesFor(ctx, u, namespace)
}

// gate decides as its chain does, from what is remembered where it can.
type gate struct{ *chain }

// Authorize implements authorizer.Authorizer.
func (g gate) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	return g.current.Load().door.Authorize(ctx, a)
}

// nearGate decides as its chain's gate does where no webhook is asked, and fails with
// ErrOthers elsewhere.
type nearGate struct{ *chain }

// Authorize implements authorizer.Authorizer.
func (g nearGate) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	return g.current.Load().near.Authorize(ctx, a)
}

// others stands for a webhook that is not asked.
type others struct{}

// Authorize implements authorizer.Authorizer.
func (others) Authorize(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	return authorizer.DecisionNoOpinion, "", ErrOthers
}

func (a *Auth) loadAuthorizer(ctx context.Context, c Config) error {
	config, err := c.Authorization.ToAuthorizationConfig(c.Informers)
	if err != nil {
		return err
	}
	if c.Egress != nil {
		if config.CustomDial, err = c.Egress.Lookup(egressselector.ControlPlane.AsNetworkContext()); err != nil {
			return err
		}
	}
	made := &chain{
		config: config, serverID: c.ServerID, stays: make(map[authzapi.AuthorizerType]link),
		read: []byte(config.InitialAuthorizationConfigurationData), accepted: config.AuthorizationConfiguration,
	}
	if err := made.fill(ctx); err != nil {
		return err
	}
	a.chain, a.graph, a.RBAC = made, made.graph, made.decisions != nil
	a.Authorizer, a.RuleResolver, a.Gate = made, made, gate{made}
	return nil
}

// fill makes the authorizers that stay and the first links.
func (c *chain) fill(ctx context.Context) error {
	authorizationmetrics.RegisterMetrics()
	c.required = sets.New[authzapi.AuthorizerType]()
	for _, configured := range c.accepted.Authorizers {
		if configured.Type == authzapi.TypeWebhook {
			continue
		}
		made, err := c.lasting(configured)
		if err != nil {
			return err
		}
		c.required.Insert(configured.Type)
		c.stays[configured.Type] = made
	}
	if c.config.ReloadFile != "" {
		c.compiler = authorizationcel.NewDefaultCompiler()
		metrics.RegisterMetrics()
		metrics.RecordAuthorizationConfigLastConfigInfo(c.serverID, string(c.read))
	}
	first, err := c.link(ctx, c.accepted)
	if err == nil {
		c.current.Store(first)
	}
	return err
}

// instrumented lets upstream's metric count what made decides.
func instrumented[T interface {
	authorizer.Authorizer
	authorizer.RuleResolver
}](configured authzapi.AuthorizerConfiguration, made T) link {
	asks := authorizationmetrics.InstrumentedAuthorizer(string(configured.Type), configured.Name, made)
	return link{asks: asks, door: asks, rules: made}
}

// lasting makes an authorizer that stays for the life of the process.
func (c *chain) lasting(configured authzapi.AuthorizerConfiguration) (link, error) {
	switch string(configured.Type) {
	case modes.ModeAlwaysAllow:
		return instrumented(configured, authorizerfactory.NewAlwaysAllowAuthorizer()), nil
	case modes.ModeAlwaysDeny:
		return instrumented(configured, authorizerfactory.NewAlwaysDenyAuthorizer()), nil
	case modes.ModeABAC:
		policies, err := abac.NewFromFile(c.config.PolicyFile)
		if err != nil {
			return link{}, err
		}
		return instrumented(configured, policies), nil
	case modes.ModeNode:
		c.graph = newGraph()
		return instrumented(configured, node.NewAuthorizer(c.graph.graph, nodeidentifier.NewDefaultNodeIdentifier(), bootstrappolicy.NodeRules())), nil
	case modes.ModeRBAC:
		return c.rbac(configured)
	}
	return link{}, fmt.Errorf("unknown authorization mode %s specified", configured.Type)
}

func (c *chain) rbac(configured authzapi.AuthorizerConfiguration) (link, error) {
	informers := c.config.VersionedInformerFactory.Rbac().V1()
	made := instrumented(configured, rbac.New(
		&rbac.RoleGetter{Lister: informers.Roles().Lister()},
		&rbac.RoleBindingLister{Lister: informers.RoleBindings().Lister()},
		&rbac.ClusterRoleGetter{Lister: informers.ClusterRoles().Lister()},
		&rbac.ClusterRoleBindingLister{Lister: informers.ClusterRoleBindings().Lister()},
	))
	remembered, err := newDecisions(made.asks, c.config.VersionedInformerFactory)
	c.decisions, made.door = remembered, remembered
	return made, err
}

// link makes what config says of the authorizers that stay and of new webhooks.
func (c *chain) link(ctx context.Context, config *authzapi.AuthorizationConfiguration) (*links, error) {
	super := authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup)
	all, door := []authorizer.Authorizer{super}, []authorizer.Authorizer{super}
	near := slices.Clone(all)
	var rules []authorizer.RuleResolver
	remote := false
	for _, configured := range config.Authorizers {
		next, ok := c.stays[configured.Type]
		switch {
		case configured.Type == authzapi.TypeWebhook:
			var err error
			if !remote {
				near = append(near, others{})
			}
			remote = true
			if next, err = c.webhook(ctx, configured); err != nil {
				return nil, err
			}
		case !ok:
			return nil, fmt.Errorf("authorizer type %s is not allowed if it was not enabled at initial server startup", configured.Type)
		}
		if !remote {
			near = append(near, next.door)
		}
		all, door, rules = append(all, next.asks), append(door, next.door), append(rules, next.rules)
	}
	return &links{all: union.New(all...), door: union.New(door...), near: union.New(near...), rules: union.NewRuleResolvers(rules...), remote: remote}, nil
}

// webhook makes one by upstream's constructor of chains, which puts the super-user's
// group in front of it once more.
func (c *chain) webhook(ctx context.Context, configured authzapi.AuthorizerConfiguration) (link, error) {
	config := *c.config
	config.ReloadFile = ""
	config.AuthorizationConfiguration = &authzapi.AuthorizationConfiguration{Authorizers: []authzapi.AuthorizerConfiguration{configured}}
	made, rules, err := config.New(ctx, c.serverID)
	return link{asks: made, door: made, rules: rules}, err
}

// run follows the file, if there is one, until ctx ends.
func (c *chain) run(ctx context.Context) {
	if c.config.ReloadFile == "" {
		return
	}
	filesystem.WatchUntil(ctx, reloadInterval, c.config.ReloadFile, func() { c.check(ctx) },
		func(err error) { klog.ErrorS(err, "watching authorization config file") })
}

// check takes over what the file says, if it says something new that can be had.
func (c *chain) check(ctx context.Context) {
	data, err := os.ReadFile(c.config.ReloadFile)
	if err == nil {
		if bytes.Equal(data, c.read) {
			return
		}
		c.read = data
		var changed bool
		if changed, err = c.take(ctx, data); err == nil && !changed {
			return
		}
	}
	if err != nil {
		klog.ErrorS(err, "reloading authorization config")
		metrics.RecordAuthorizationConfigAutomaticReloadFailure(c.serverID)
		return
	}
	klog.InfoS("reloaded authz config")
	metrics.RecordAuthorizationConfigAutomaticReloadSuccess(c.serverID, string(data))
}

// take reports whether data says anything else than before.
func (c *chain) take(ctx context.Context, data []byte) (bool, error) {
	config, err := kubeauthorizer.LoadAndValidateData(data, c.compiler, c.required)
	if err != nil || reflect.DeepEqual(config, c.accepted) {
		return false, err
	}
	c.accepted = config
	next, err := c.link(ctx, config)
	if err == nil {
		c.current.Store(next)
		c.changes.Add(1)
	}
	return true, err
}
