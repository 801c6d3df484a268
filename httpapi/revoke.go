package httpapi

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/request"
	"github.com/larder-io/larder/httpapi/streams"
	"github.com/larder-io/larder/internal/auth"
)

// A watch was authenticated and authorized when it began, and may last for an hour. Every
// revokeInterval a round looks at what that rests on. Webhooks and providers, which do not
// tell of changes, are asked again in the first round that is remoteInterval after the last
// answer, which makes every three seconds, and have recheckTimeout to answer. So a watch
// ends within five seconds of losing its right. A webhook or provider that does not answer
// ends no watch; it is asked again after retryInterval. A client that does not read the end
// of its stream is cut off after revokePatience.
const (
	revokeInterval = time.Second
	remoteInterval = 3*time.Second - revokeInterval/2
	retryInterval  = revokeInterval / 2
	// recheckTimeout bounds one question to others, or all about one credential that are
	// decided here.
	recheckTimeout = 2 * time.Second
	// nearCrowd is how many credentials are looked at here at once, remoteCrowd how many
	// questions of a kind others are asked at once.
	nearCrowd   = 8
	remoteCrowd = 32
)

// rights knows by what right watches are open. Watches of the same sender for the same
// share one, so that a thousand of them cost one question.
//
// While nothing changes that rights rest on, they cost nothing. Questions
// are asked in three pools, so that a slow answer delays only its own pool: what is decided
// in this process, what others authenticate, and what others authorize. Run waits for all
// goroutines that ask.
type rights struct {
	s      *Server
	config *auth.Revocation // nil: rights are not looked after
	caches map[string]*cache.Cache

	ended [lastLoss]atomic.Int64 // watches

	near, identities, permissions pool
	told                          answers // by the pools

	mu     sync.Mutex
	known  map[[sha256.Size]byte]*credential // guarded by mu
	agenda agenda                            // guarded by mu
}

// What is lost.
const (
	lossNone uint32 = iota
	lossCredential
	lossPermission
	lastLoss
)

// credential is what watches of one sender were authenticated by. What it holds of
// secrets it holds for as long as one of them is open.
type credential struct {
	key          [sha256.Size]byte
	request      *http.Request // to authenticate once more; not changed
	impersonates bool
	rights       map[string]*right // guarded by rights.mu

	// The rest belongs to the goroutine that calls run and, while busy, to the one that
	// looks at it.
	busy       bool
	ties       auth.Ties
	near       bool // it is known here who this is
	asking     bool // others are asked
	asked      bool
	retry      time.Time // not to be asked about before
	alarm      int64     // of agenda, 0 if there is none
	generation uint64
	revisions  []int64 // of ties.Objects, as they were when it was asked
	next       time.Time
	who        user.Info
}

// right is what watches of one credential for the same rest on.
type right struct {
	of      *credential
	set     *rights
	key     string
	holders int           // guarded by rights.mu
	lost    atomic.Uint32 // a loss

	// The rest belongs to who credential's belongs to.
	attributes request.Attributes
	info       *apirequest.RequestInfo
	asking     bool // others are asked
	asked      bool
	retry      time.Time // not to be asked about before
	next       time.Time // to ask others
	all, nodes uint64    // of the authorizer, when it was asked
	single     bool      // it may hang on what a node needs
}

func newRights(s *Server) *rights {
	r := &rights{
		s: s, config: s.config.Revocation, caches: make(map[string]*cache.Cache),
		known:  make(map[[sha256.Size]byte]*credential),
		agenda: newAgenda(), told: answers{come: make(chan struct{}, 1)},
	}
	r.near = pool{wide: nearCrowd, told: &r.told}
	r.identities, r.permissions = pool{wide: remoteCrowd, told: &r.told}, pool{wide: remoteCrowd, told: &r.told}
	if r.config == nil || s.config.Registry == nil {
		return r
	}
	for _, resource := range s.config.Registry.Resources() {
		if resource.GroupResource.Group == "" && resource.Cache != nil {
			r.caches[resource.GroupResource.Resource] = resource.Cache
		}
	}
	return r
}

// join returns by what right the request, a watch that is about to begin, is served; nil
// if that is not looked after. It must be left.
func (r *rights) join(x *exchange.Exchange) *right {
	if r.config == nil || x.Verb != "watch" || r.s.config.Authenticator == nil || x.Carrier.Internal() {
		return nil
	}
	req := r.s.credentialRequest(x)
	key := r.s.credentialKey(x, req)
	what := strings.Join([]string{x.Namespace, x.Group, x.Version, x.Resource, x.Subresource, x.Name, x.FieldSelector, x.LabelSelector, x.Path}, "\x00")
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.known[key]
	if c == nil {
		c = &credential{
			key: key, request: req, rights: make(map[string]*right), who: x.User, ties: r.config.Ties(req),
			impersonates: len(req.Header["Impersonate-User"]) > 0,
		}
		// One that was over when the watch began is accepted for another reason.
		if c.ties.Ends && !c.ties.Expires.After(x.Received) {
			c.ties.Ends, c.ties.Expires = false, time.Time{}
		}
		r.known[key] = c
		r.agenda.enter(c)
	}
	held := c.rights[what]
	if held == nil {
		held = &right{of: c, set: r, key: what, attributes: request.Attributes{User: x.User, Request: x.Asked()}, info: x.RequestInfo()}
		held.single = x.Name != "" && slices.Contains(x.User.GetGroups(), user.NodesGroup)
		c.rights[what] = held
		r.agenda.next[c] = struct{}{}
		if held.single {
			r.agenda.tie(c, onNodes)
		}
	}
	held.holders++
	return held
}

// right returns by what right the request's stream is open; nil if that is not looked after.
func (r *rights) right(x *exchange.Exchange) streams.Right {
	if held := r.join(x); held != nil {
		return held
	}
	return nil
}

// leave ends what join began. held may be nil.
func (r *rights) leave(held *right) {
	if held == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if held.holders--; held.holders == 0 {
		r.dropLocked(held)
	}
}

// dropLocked forgets a right that nobody has, or that is lost.
func (r *rights) dropLocked(held *right) {
	c := held.of
	if c.rights[held.key] == held {
		delete(c.rights, held.key)
	}
	if len(c.rights) == 0 && r.known[c.key] == c {
		delete(r.known, c.key)
		r.agenda.leave(c)
	}
}

// credentialRequest is a request with nothing but what says who asks, and as whom.
func (s *Server) credentialRequest(x *exchange.Exchange) *http.Request {
	header := x.CopyHeaders(func(key string) bool {
		switch key {
		case "Sec-Websocket-Protocol", "Connection", "Upgrade": // the former counts with the latter alone
			return true
		}
		return s.credential.Has(key) || strings.HasPrefix(key, "Impersonate-")
	})
	req := &http.Request{
		Method: http.MethodGet, URL: &url.URL{Path: x.Path}, Header: header, Body: http.NoBody,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, RemoteAddr: x.Carrier.RemoteAddr().String(),
	}
	if state := x.Carrier.TLS(); state != nil { // the rest of it holds the connection
		req.TLS = &tls.ConnectionState{Version: state.Version, HandshakeComplete: true, PeerCertificates: state.PeerCertificates}
	}
	return req
}

// credentialKey tells credentials apart, and paths if anonymous clients are accepted on some
// paths only.
func (s *Server) credentialKey(x *exchange.Exchange, req *http.Request) (key [sha256.Size]byte) {
	var b []byte
	for _, name := range sortedNames(req.Header) {
		b = append(append(b, name...), 0)
		for _, value := range req.Header[name] {
			b = append(append(b, value...), 0)
		}
	}
	if req.TLS != nil && len(req.TLS.PeerCertificates) > 0 {
		b = append(b, req.TLS.PeerCertificates[0].Raw...)
	}
	if s.config.AnonymousByPath {
		b = append(append(b, 0), x.Path...)
	}
	s.digester.Digest(&key, b)
	return key
}

func sortedNames(header http.Header) []string {
	names := make([]string, 0, len(header))
	for name := range header {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// run looks after the rights until ctx ends.
func (r *rights) run(ctx context.Context) {
	if r.config == nil {
		return
	}
	for _, asked := range []*pool{&r.near, &r.identities, &r.permissions} {
		defer asked.asking.Wait()
	}
	ticker := time.NewTicker(revokeInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-r.told.come:
		}
		r.look(ctx, time.Now())
	}
}

// lose says that held is lost. The watches that rest on it end when streams.part looks.
func (r *rights) lose(held *right, loss uint32) {
	r.mu.Lock()
	r.dropLocked(held)
	r.mu.Unlock()
	held.lost.Store(loss)
	r.s.streams.Revoke()
	klog.V(2).InfoS("Watches end: their right is lost", "user", held.of.who.GetName(), "credentialLost", loss == lossCredential,
		"group", held.info.APIGroup, "resource", held.info.Resource, "namespace", held.info.Namespace)
}

// Lost implements streams.Right.
func (held *right) Lost() bool { return held.lost.Load() != lossNone }

// Ended implements streams.Right.
func (held *right) Ended() { held.set.ended[held.lost.Load()].Add(1) }

// Leave implements streams.Right.
func (held *right) Leave() { held.set.leave(held) }

// newRevokedWatches reports how many watches ended for want of a right.
func newRevokedWatches(r *rights) prometheus.Collector {
	return &revokedCollector{r, prometheus.NewDesc("larder_watches_revoked_total",
		"Counter of watches that were ended because their sender lost the right to them, by what was lost: the credential or the permission.", []string{"lost"}, nil)}
}

// revokedCollector is immutable.
type revokedCollector struct {
	rights *rights
	ended  *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *revokedCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.ended }

// Collect implements prometheus.Collector.
func (c *revokedCollector) Collect(ch chan<- prometheus.Metric) {
	for loss, label := range map[uint32]string{lossCredential: "credential", lossPermission: "permission"} {
		ch <- prometheus.MustNewConstMetric(c.ended, prometheus.CounterValue, float64(c.rights.ended[loss].Load()), label)
	}
}
