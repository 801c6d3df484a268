package auth

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"reflect"
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
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/auth/nodeidentifier"
	kubeauthorizer "k8s.io/kubernetes/pkg/kubeapiserver/authorizer"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer/modes"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/node"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// chain calls upstream's authorizers in the configured order, after the check for system:masters. It replaces
// kubernetes pkg/kubeapiserver/authorizer/reload.go, which does not expose the RBAC authorizer, whose decisions are
// cached here.
type chain struct {
	config    *kubeauthorizer.Config
	reviews   *webhook.WebhookAuthorizer // in place of webhooks; may be nil
	serverID  string
	compiler  authorizationcel.Compiler        // nil without a file
	permanent map[authzapi.AuthorizerType]link // the configuration file must name all their types
	first     firstSync                        // of the objects that permanent authorizers read

	graph     *graph     // nil without the Node authorizer
	decisions *decisions // nil without RBAC

	// The other fields, except current, belong to the goroutine that calls run.
	current  atomic.Pointer[links]
	changes  atomic.Uint64 // how often current was replaced
	read     []byte
	accepted *authzapi.AuthorizationConfiguration
}

// link is one authorizer of a chain.
type link struct {
	authorizer authorizer.Authorizer
	rules      authorizer.RuleResolver
}

// links are the authorizers of one configuration. They are immutable.
type links struct {
	all    authorizer.Authorizer
	local  authorizer.Authorizer // as all, but fails with ErrRemote in place of the first webhook
	rules  authorizer.RuleResolver
	remote bool // there are webhooks
}

// Authorize implements authorizer.Authorizer. Before the first sync, a request that the objects loaded so far do not
// allow waits, and webhooks are not called. Health probes do not wait.
func (c *chain) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if !c.first.synced() && !isHealthProbe(a) {
		if decision, reason, err := c.current.Load().local.Authorize(ctx, a); decision == authorizer.DecisionAllow {
			return decision, reason, err
		}
		if err := c.first.wait(ctx); err != nil {
			return authorizer.DecisionNoOpinion, "", err
		}
	}
	return c.current.Load().all.Authorize(ctx, a)
}

// local decides as Authorize does, but fails with ErrRemote instead of calling a webhook, and with ErrNotSynced instead
// of waiting.
func (c *chain) local(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	synced := c.first.synced()
	decision, reason, err := c.current.Load().local.Authorize(ctx, a)
	if synced || decision == authorizer.DecisionAllow {
		return decision, reason, err
	}
	return authorizer.DecisionNoOpinion, "", ErrNotSynced
}

// RulesFor implements authorizer.RuleResolver. It waits for the first sync.
func (c *chain) RulesFor(ctx context.Context, u user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	if err := c.first.wait(ctx); err != nil {
		return nil, nil, true, err
	}
	return c.current.Load().rules.RulesFor(ctx, u, namespace)
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
		config: config, reviews: c.AccessReviews, serverID: c.ServerID, permanent: make(map[authzapi.AuthorizerType]link),
		first: firstSync{ended: c.Ended}, read: []byte(config.InitialAuthorizationConfigurationData), accepted: config.AuthorizationConfiguration,
	}
	if err := made.fill(ctx); err != nil {
		return err
	}
	a.chain, a.graph, a.RBAC = made, made.graph, made.decisions != nil
	a.Authorizer, a.RuleResolver = made, made
	return nil
}

// fill makes the permanent authorizers and the first links.
func (c *chain) fill(ctx context.Context) error {
	authorizationmetrics.RegisterMetrics()
	for _, configured := range c.accepted.Authorizers {
		if configured.Type == authzapi.TypeWebhook {
			continue
		}
		var err error
		if c.permanent[configured.Type], err = c.newPermanent(ctx, configured); err != nil {
			return err
		}
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

// newPermanent makes an authorizer that a reload of the configuration keeps. The Node authorizer gets
// Larder's graph, and RBAC a cache; the others are upstream's.
func (c *chain) newPermanent(ctx context.Context, configured authzapi.AuthorizerConfiguration) (link, error) {
	if string(configured.Type) == modes.ModeNode {
		c.graph = newGraph()
		c.first.add(c.graph.waited)
		rules := node.NewAuthorizer(c.graph.graph, nodeidentifier.NewDefaultNodeIdentifier(), bootstrappolicy.NodeRules())
		return link{authorizationmetrics.InstrumentedAuthorizer(string(configured.Type), configured.Name, rules), rules}, nil
	}
	if string(configured.Type) != modes.ModeRBAC {
		return c.newUpstream(ctx, configured)
	}
	from := c.config.VersionedInformerFactory.Rbac().V1()
	rules := rbac.New(&rbac.RoleGetter{Lister: from.Roles().Lister()}, &rbac.RoleBindingLister{Lister: from.RoleBindings().Lister()},
		&rbac.ClusterRoleGetter{Lister: from.ClusterRoles().Lister()}, &rbac.ClusterRoleBindingLister{Lister: from.ClusterRoleBindings().Lister()})
	var err error
	if c.decisions, err = newDecisions(rules, c.config.VersionedInformerFactory); err != nil {
		return link{}, err
	}
	for _, informer := range rbacInformers(c.config.VersionedInformerFactory) {
		c.first.add(informer.HasSyncedChecker().Done())
	}
	return link{authorizationmetrics.InstrumentedAuthorizer(string(configured.Type), configured.Name, c.decisions), rules}, nil
}

// link makes the links of config from the permanent authorizers and new ones, which need no objects.
func (c *chain) link(ctx context.Context, config *authzapi.AuthorizationConfiguration) (*links, error) {
	super := authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup)
	all, local := []authorizer.Authorizer{super}, []authorizer.Authorizer{super}
	var rules []authorizer.RuleResolver
	remote := false
	for _, configured := range config.Authorizers {
		if configured.Type == authzapi.TypeWebhook && !remote {
			local, remote = append(local, authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
				return authorizer.DecisionNoOpinion, "", ErrRemote // instead of a webhook that must not be called
			})), true
		}
		next, ok := c.permanent[configured.Type]
		if !ok {
			switch string(configured.Type) {
			case ModeNode, ModeRBAC, modes.ModeABAC:
				return nil, fmt.Errorf("authorizer type %s is not allowed if it was not enabled at initial server startup", configured.Type)
			}
			var err error
			if next, err = c.newUpstream(ctx, configured); err != nil {
				return nil, err
			}
		}
		if !remote {
			local = append(local, next.authorizer)
		}
		all, rules = append(all, next.authorizer), append(rules, next.rules)
	}
	return &links{all: union.New(all...), local: union.New(local...), rules: union.NewRuleResolvers(rules...), remote: remote}, nil
}

// newUpstream makes one authorizer by upstream's constructor of chains, which adds another check for system:masters
// before it.
func (c *chain) newUpstream(ctx context.Context, configured authzapi.AuthorizerConfiguration) (link, error) {
	if configured.Type == authzapi.TypeWebhook && c.reviews != nil {
		return link{authorizationmetrics.InstrumentedAuthorizer(string(configured.Type), configured.Name, c.reviews), c.reviews}, nil
	}
	config := *c.config
	config.ReloadFile = ""
	config.AuthorizationConfiguration = &authzapi.AuthorizationConfiguration{Authorizers: []authzapi.AuthorizerConfiguration{configured}}
	made, rules, err := config.New(ctx, c.serverID)
	return link{made, rules}, err
}

// run follows the file, if there is one, until ctx ends.
func (c *chain) run(ctx context.Context) {
	if c.config.ReloadFile == "" {
		return
	}
	filesystem.WatchUntil(ctx, reloadInterval, c.config.ReloadFile, func() { c.check(ctx) },
		func(err error) { klog.ErrorS(err, "watching authorization config file") })
}

// check applies the file if it has changed and is valid.
func (c *chain) check(ctx context.Context) {
	data, err := os.ReadFile(c.config.ReloadFile)
	if err == nil {
		if bytes.Equal(data, c.read) {
			return
		}
		c.read = data
		var changed bool
		if changed, err = c.apply(ctx, data); err == nil && !changed {
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

// apply applies a configuration, and reports whether it differs from the previous one.
func (c *chain) apply(ctx context.Context, data []byte) (bool, error) {
	config, err := kubeauthorizer.LoadAndValidateData(data, c.compiler, sets.KeySet(c.permanent))
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
