package revocation

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/identity"
	"github.com/larder-io/larder/httpapi/request"
	"github.com/larder-io/larder/httpapi/streams"
	"github.com/larder-io/larder/internal/auth"
	"github.com/larder-io/larder/internal/registry"
)

// Config says what rights depend on, and what decides about them.
type Config struct {
	// Revocation reports changes that rights depend on; if it is nil, rights are never checked again.
	Revocation *auth.Revocation
	// Authorizer decides what Revocation's LocalAuthorizer does not, and everything if there is none;
	// nil allows everything.
	Authorizer authorizer.Authorizer
	// Audiences are what tokens may be meant for.
	Audiences authenticator.Audiences
	// AnonymousByPath says that anonymous clients are accepted on some paths only.
	AnonymousByPath bool
	Headers         *identity.Headers
	Digester        *identity.Digester

	// Registry has the objects that tokens are bound to; nil stands for none.
	Registry *registry.Registry
	// Streams has the watches, and ends those whose right is lost.
	Streams *streams.Streams
}

// Rights knows the rights by which watches are open.
type Rights struct {
	config  Config
	reader  credentialReader
	objects objects
	table   *table
	pools   *pools
}

// New returns a Rights without watches.
func New(config Config) *Rights {
	r := &Rights{
		config: config, reader: credentialReader{config.Headers, config.Digester, config.AnonymousByPath},
		table: newTable(), pools: newPools(),
	}
	if config.Revocation != nil {
		r.objects = newObjects(config.Registry)
	}
	return r
}

// Basis has the counters that the authorizer's answer about a request depends on. With the zero
// value the authorizer is asked again.
type Basis struct {
	known       bool
	all, losses uint64 // see right
}

// Basis reads the counters that the authorizer's answer about x will depend on: a round sees later
// changes. The caller calls it before it asks the authorizer, and only for watches.
func (r *Rights) Basis(x *exchange.Exchange) Basis {
	if r.config.Revocation == nil || r.config.Revocation.Remote() {
		return Basis{}
	}
	b := Basis{known: true}
	b.all, _ = r.config.Revocation.AuthorizerChanges()
	if single(x) {
		b.losses = r.config.Revocation.NodeChanges(x.User)
	}
	return b
}

// single reports whether x is a node that watches one object: see right.
func single(x *exchange.Exchange) bool {
	return x.Name != "" && slices.Contains(x.User.GetGroups(), user.NodesGroup)
}

// Join returns the right by which x, a watch that is about to begin, is open; nil if x is no watch
// or its right is never checked again. The authorizer has allowed x, on that basis.
func (r *Rights) Join(x *exchange.Exchange, on Basis) streams.Right {
	if r.config.Revocation == nil || x.Verb != "watch" || x.Carrier.Internal() {
		return nil
	}
	req := r.reader.request(x)
	what := strings.Join([]string{x.Namespace, x.Group, x.Version, x.Resource, x.Subresource, x.Name, x.FieldSelector, x.LabelSelector, x.Path}, "\x00")
	return r.table.join(r.reader.key(x, req), what, func() *credential {
		c := &credential{request: req, who: x.User, ties: r.config.Revocation.Dependencies(req), impersonates: len(req.Header["Impersonate-User"]) > 0}
		// A credential that had expired when the watch began is accepted for another reason.
		if c.ties.Ends && !c.ties.Expires.After(x.Received) {
			c.ties.Ends, c.ties.Expires = false, time.Time{}
		}
		return c
	}, func() *right {
		return &right{
			attributes: request.Attributes{User: x.User, Request: x.Clone()}, single: single(x),
			asked: on.known && len(req.Header["Impersonate-User"]) == 0, all: on.all, losses: on.losses,
		}
	})
}

// Collector reports how many watches ended because their right was lost.
func (r *Rights) Collector() prometheus.Collector { return r.table.ended }

// Run checks rights until ctx ends.
func (r *Rights) Run(ctx context.Context) {
	if r.config.Revocation == nil {
		return
	}
	defer r.pools.wait()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-r.pools.results.ready:
			// A round looks at all credentials, so answers that come together share one.
			select {
			case <-ctx.Done():
				return
			case <-time.After(interval / 20):
			}
		}
		r.look(ctx, time.Now())
	}
}

// look starts the checks of rights that may have changed, and ends the watches whose right is lost.
// It waits for no answer.
func (r *Rights) look(ctx context.Context, now time.Time) {
	r.pools.results.settle()
	config := r.config.Revocation
	turn := &round{
		state: state{counters: countersOf(config), now: now, objects: r.objects, losses: config.NodeChanges},
		ctx:   ctx, table: r.table, pools: r.pools, streams: r.config.Streams,
	}
	due := r.table.toCheck(&turn.state)
	if len(due) > 0 {
		turn.remote = newChecker(config.Authenticator, r.config.Audiences, r.config.Authorizer)
		turn.local = turn.remote
		if config.LocalAuthenticator != nil {
			turn.local = newChecker(config.LocalAuthenticator, r.config.Audiences, cmp.Or(config.LocalAuthorizer, r.config.Authorizer))
		}
	}
	for c, all := range due {
		c.busy = true
		r.pools.local.add(ctx, func(ctx context.Context) func() bool {
			turn.check(ctx, c, all)
			return func() bool {
				c.busy = false
				return true
			}
		})
	}
	r.config.Streams.EndRevoked(now)
}

// Stats counts credentials and checks.
type Stats struct {
	// Senders is how many credentials have a watch open.
	Senders int
	// Busy says that a right must be checked, or that a check is running.
	Busy bool
}

// Stats returns the current counts.
func (r *Rights) Stats() Stats {
	if r.config.Revocation == nil {
		return Stats{}
	}
	known, waiting := r.table.stats(countersOf(r.config.Revocation))
	return Stats{Senders: known, Busy: waiting || r.pools.busy()}
}
