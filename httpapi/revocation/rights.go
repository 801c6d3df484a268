package revocation

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/identity"
	"github.com/larder-io/larder/httpapi/request"
	"github.com/larder-io/larder/httpapi/streams"
	"github.com/larder-io/larder/internal/auth"
	"github.com/larder-io/larder/internal/registry"
)

// Config configures Rights.
type Config struct {
	// Revocation reports changes that rights depend on; if it is nil, rights are never checked again.
	Revocation *auth.Revocation
	// Authorizer decides requests that Revocation's LocalAuthorizer does not.
	Authorizer authorizer.Authorizer
	// Audiences are the accepted audiences of tokens.
	Audiences authenticator.Audiences
	// AnonymousByPath means that anonymous clients are accepted only on some paths.
	AnonymousByPath bool
	Headers         *identity.Headers
	Digester        *identity.Digester

	// Registry has the objects to which tokens are bound; nil means none.
	Registry *registry.Registry
	// Streams has the watches, and ends watches that have lost their right.
	Streams *streams.Streams
}

// Rights has the rights of all open watches and of the status page's streams.
type Rights struct {
	config  Config
	objects map[string]*cache.Cache // of the core group's resources, which tokens may be bound to, by name
	ended   *prometheus.CounterVec  // watches that ended, by the right that was lost

	// The pools of checks. local asks this process, identities asks providers and webhooks that
	// authenticate, and permissions asks webhooks that authorize.
	local, identities, permissions *pool
	running                        sync.WaitGroup // the goroutines of the pools
	all                            []*credential  // scratch of claim, which one goroutine calls

	mu    sync.Mutex
	known map[[sha256.Size]byte]*credential // guarded by mu
}

// New returns a Rights without watches.
func New(config Config) *Rights {
	r := &Rights{
		config: config, known: make(map[[sha256.Size]byte]*credential),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "larder_watches_revoked_total",
			Help: "Counter of watches that were ended because their sender lost the right to them, by what was lost: the credential or the permission.",
		}, []string{"lost"}),
	}
	r.ended.WithLabelValues(lostCredential)
	r.ended.WithLabelValues(lostPermission)
	r.local = &pool{size: localConcurrency, timeout: localTimeout, running: &r.running}
	r.identities = &pool{size: RemoteConcurrency, timeout: remoteTimeout, running: &r.running}
	r.permissions = &pool{size: RemoteConcurrency, timeout: remoteTimeout, running: &r.running}
	if config.Revocation != nil && config.Registry != nil {
		r.objects = make(map[string]*cache.Cache)
		for _, resource := range config.Registry.Resources() {
			if resource.GroupResource.Group == "" && resource.Cache != nil {
				r.objects[resource.GroupResource.Resource] = resource.Cache
			}
		}
	}
	return r
}

// Join returns the right of x, a watch that is about to begin. It returns nil if x is neither a watch nor the
// stream of the status page, or if the right is never checked again.
func (r *Rights) Join(x *exchange.Exchange) streams.Right {
	stream := x.Path == request.StatusPath && x.LongRunning()
	if r.config.Revocation == nil || x.Verb != "watch" && !stream || x.Carrier.Internal() {
		return nil
	}
	req := r.requestOf(x)
	what := strings.Join([]string{x.Namespace, x.Group, x.Version, x.Resource, x.Subresource, x.Name, x.FieldSelector, x.LabelSelector, x.Path}, "\x00")
	return r.join(r.keyOf(x, req), what, func() *credential {
		c := &credential{request: req, who: x.User, ties: r.config.Revocation.Dependencies(req), impersonates: len(req.Header["Impersonate-User"]) > 0}
		// A credential that had expired when the watch began was accepted for a reason other than its lifetime.
		if c.ties.Ends && !c.ties.Expires.After(x.Received) {
			c.ties.Ends, c.ties.Expires = false, time.Time{}
		}
		return c
	}, func() *right {
		held := &right{attributes: x.Attributes(x.User), single: x.Name != "" && slices.Contains(x.User.GetGroups(), user.NodesGroup)}
		if len(req.Header["Impersonate-User"]) > 0 {
			held.info = x.RequestInfo()
			held.info.Parts = slices.Clone(held.info.Parts) // which would keep x in memory
		}
		return held
	})
}

// join returns the right that the watches of the same objects with the same credential share. It counts one
// more holder; [right.Leave] undoes that. first makes a new credential, and enter a new right.
func (r *Rights) join(key [sha256.Size]byte, what string, first func() *credential, enter func() *right) *right {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.known[key]
	if c == nil {
		c = first()
		c.in, c.key, c.rights = r, key, make(map[string]*right)
		r.known[key] = c
	}
	held := c.rights[what]
	if held == nil {
		held = enter()
		held.of, held.key = c, what
		c.rights[what], c.decided = held, decidedAt{}
	}
	held.holders++
	return held
}

// dropLocked removes a right that is lost or has no more watches.
func (r *Rights) dropLocked(held *right) {
	c := held.of
	if c.rights[held.key] == held {
		delete(c.rights, held.key)
	}
	if len(c.rights) == 0 && r.known[c.key] == c {
		delete(r.known, c.key)
	}
}

// Collector reports how many watches ended because their right was lost.
func (r *Rights) Collector() prometheus.Collector { return r.ended }

// Run checks rights until ctx ends.
func (r *Rights) Run(ctx context.Context) {
	if r.config.Revocation == nil {
		return
	}
	defer r.running.Wait()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		r.look(ctx, time.Now())
		select {
		case <-ctx.Done():
			return
		case <-time.After(interval / 20): // most checks have ended
		}
		r.config.Streams.EndRevoked(time.Now())
	}
}

// look starts the checks of rights that may have changed. It does not wait for them.
func (r *Rights) look(ctx context.Context, now time.Time) {
	t := r.newRound(ctx, now)
	for _, c := range t.claim() {
		r.local.add(ctx, func(ctx context.Context) { t.check(ctx, c) })
	}
}

// The reasons for the loss of a right, as labels of the metric.
const (
	lostCredential = "credential"
	lostPermission = "permission"
)

// credential authenticates the watches of one client. It may contain secrets, and is kept as long as one of
// these watches is open.
type credential struct {
	in           *Rights
	key          [sha256.Size]byte
	request      *http.Request // authenticates again; not changed
	impersonates bool
	ties         auth.Dependencies
	local        bool // this process authenticated it without a provider or webhook; the check has it

	// The rest is guarded by Rights.mu.
	rights     map[string]*right
	busy       bool // a check is queued or runs
	asking     bool // a provider or webhook is being asked
	asked      bool
	retry      time.Time // earliest time of the next authentication
	generation uint64
	revisions  []int64   // of ties.Objects when it was last authenticated
	ends       time.Time // when one of ties.Objects, which is being deleted, makes it invalid; zero: none
	next       time.Time
	who        user.Info
	decided    decidedAt
}

// decidedAt has the counters at which a round found that all rights of a credential had been decided. Until one
// of them changes, or a right is added, rounds do not look at these rights.
type decidedAt struct {
	known       bool
	all, losses uint64 // see right
}

// right is the right that one credential's watches of the same objects share. It implements streams.Right.
type right struct {
	of     *credential
	key    string
	single bool                    // a node watches one object: the node authorizer may deny it later
	info   *apirequest.RequestInfo // for upstream's filter, if the client impersonates
	lost   atomic.Pointer[string]  // the lost right; nil if none was lost

	// The rest is guarded by Rights.mu.
	holders    int
	attributes authorizer.AttributesRecord
	asking     bool // the authorizer is being asked
	asked      bool
	retry      time.Time // earliest time of the next authorization
	next       time.Time // to ask a webhook again
	all        uint64    // counters.all when the authorizer was asked
	losses     uint64    // of the node that the user is, when the authorizer was asked
}

func (held *right) Lost() bool { return held.lost.Load() != nil }

func (held *right) Ended() { held.of.in.ended.WithLabelValues(*held.lost.Load()).Inc() }

func (held *right) Leave() {
	r := held.of.in
	r.mu.Lock()
	defer r.mu.Unlock()
	if held.holders--; held.holders == 0 {
		r.dropLocked(held)
	}
}

// requestOf returns a request that has only the credentials and the impersonation fields of x.
func (r *Rights) requestOf(x *exchange.Exchange) *http.Request {
	header := x.CopyHeaders(func(key string) bool {
		switch key {
		case "Sec-Websocket-Protocol", "Connection", "Upgrade": // the first holds a token only with the others
			return true
		}
		return r.config.Headers.Has(key) || strings.HasPrefix(key, "Impersonate-")
	})
	req := &http.Request{
		Method: http.MethodGet, URL: &url.URL{Path: x.Path}, Header: header, Body: http.NoBody,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, RemoteAddr: x.Carrier.RemoteAddr().String(),
	}
	if state := x.Carrier.TLS(); state != nil { // its other fields would keep the connection alive
		req.TLS = &tls.ConnectionState{Version: state.Version, HandshakeComplete: true, PeerCertificates: state.PeerCertificates}
	}
	return req
}

// keyOf returns a digest of req, which requestOf returned for x: of its credentials, of the user that
// it impersonates, and of its path if anonymous clients are accepted on some paths only.
func (r *Rights) keyOf(x *exchange.Exchange, req *http.Request) [sha256.Size]byte {
	b := fmt.Appendf(nil, "%q", req.Header) // in the order of the names
	if req.TLS != nil && len(req.TLS.PeerCertificates) > 0 {
		b = append(b, req.TLS.PeerCertificates[0].Raw...)
	}
	if r.config.AnonymousByPath {
		b = append(append(b, 0), x.Path...)
	}
	return r.config.Digester.Digest(b)
}
