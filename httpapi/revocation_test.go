package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/component-base/metrics/testutil"

	"github.com/larder-io/larder/httpapi/request"
	"github.com/larder-io/larder/httpapi/revocation"
	"github.com/larder-io/larder/internal/auth"
	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/registry/registrytest"
)

// fakeAccess is an authenticator and authorizer whose decisions a test can change. It counts its calls.
type fakeAccess struct {
	generation, changes atomic.Uint64
	authorizations      atomic.Int64 // number of calls of Authorize
	authentications     atomic.Int64 // number of calls of again
	remote              atomic.Bool

	mu          sync.Mutex
	unknown     map[string]bool   // guarded by mu
	denied      map[string]bool   // guarded by mu
	unavailable bool              // guarded by mu: neither can be decided
	silent      map[string]bool   // guarded by mu: they cannot be authenticated again
	subject     map[string]bool   // guarded by mu: users without the right to impersonate
	stuck       chan struct{}     // guarded by mu: remote services do not respond until it is closed; may be nil
	ties        auth.Dependencies // guarded by mu
	lasts       time.Duration     // guarded by mu: a credential expires so long after its watch has begun; 0: it does not
	about       map[string]int64  // guarded by mu: authorizations, by user

	// The counters when a user was last authenticated again, and authorized; guarded by mu.
	identified, authorized map[string]uint64
}

func newFakeAccess() *fakeAccess {
	return &fakeAccess{
		unknown: make(map[string]bool), denied: make(map[string]bool), silent: make(map[string]bool),
		subject: make(map[string]bool), about: make(map[string]int64),
		identified: make(map[string]uint64), authorized: make(map[string]uint64),
	}
}

func (f *fakeAccess) change(counter *atomic.Uint64, change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	counter.Add(1)
}

var errUnavailable = errors.New("unavailable")

// AuthenticateRequest implements authenticator.Request.
func (f *fakeAccess) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	resp, ok, err := named(req)
	if f.unavailable {
		return nil, false, errUnavailable
	}
	return resp, ok && !f.unknown[resp.User.GetName()], err
}

// Authorize implements authorizer.Authorizer.
func (f *fakeAccess) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.authorizations.Add(1)
	f.about[a.GetUser().GetName()]++
	f.authorized[a.GetUser().GetName()] = f.changes.Load()
	switch {
	case f.subject[a.GetUser().GetName()] && strings.HasPrefix(a.GetVerb(), "impersonate"):
		return authorizer.DecisionNoOpinion, "", nil
	case f.unavailable:
		return authorizer.DecisionNoOpinion, "", errUnavailable
	case f.denied[a.GetUser().GetName()]:
		return authorizer.DecisionNoOpinion, "", nil
	}
	return authorizer.DecisionAllow, "", nil
}

// again authenticates req again.
func (f *fakeAccess) again(req *http.Request) (*authenticator.Response, bool, error) {
	f.authentications.Add(1)
	f.mu.Lock()
	silent := f.silent[req.Header.Get("Authorization")]
	f.identified[req.Header.Get("Authorization")] = f.generation.Load()
	f.mu.Unlock()
	if silent {
		return nil, false, errUnavailable
	}
	return f.AuthenticateRequest(req)
}

// elsewhere reports whether remote services decide about a user.
func elsewhere(who string) bool { return strings.HasPrefix(who, "far") }

// wait blocks while the remote services that decide about a user are blocked.
func (f *fakeAccess) wait(who string) {
	f.mu.Lock()
	stuck := f.stuck
	f.mu.Unlock()
	if stuck != nil && elsewhere(who) {
		<-stuck
	}
}

// blockRemoteLocked makes remote services not respond.
func (f *fakeAccess) blockRemoteLocked() { f.stuck = make(chan struct{}) }

// unblockRemote ends blockRemoteLocked.
func (f *fakeAccess) unblockRemote() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stuck != nil {
		close(f.stuck)
		f.stuck = nil
	}
}

// withRemote makes remote services decide about some users.
func (f *fakeAccess) withRemote(r *auth.Revocation) (*auth.Revocation, authorizer.Authorizer) {
	gate := authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		f.wait(a.GetUser().GetName())
		return f.Authorize(ctx, a)
	})
	r.Authenticator = authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
		f.wait(req.Header.Get("Authorization"))
		return f.again(req)
	})
	r.LocalAuthenticator = authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
		if elsewhere(req.Header.Get("Authorization")) {
			return nil, false, auth.ErrRemote
		}
		return f.again(req)
	})
	r.LocalAuthorizer = authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if elsewhere(a.GetUser().GetName()) {
			return authorizer.DecisionNoOpinion, "", auth.ErrRemote
		}
		return f.Authorize(ctx, a)
	})
	return r, gate
}

func (f *fakeAccess) revocation() *auth.Revocation {
	return &auth.Revocation{
		Authenticator: authenticator.RequestFunc(f.again), LocalAuthenticator: authenticator.RequestFunc(f.again), LocalAuthorizer: f,
		Generation: f.generation.Load, Remote: f.remote.Load,
		AuthorizerChanges: func() uint64 { return f.changes.Load() },
		NodeChanges:       func(user.Info) uint64 { return 0 },
		Dependencies: func(*http.Request) auth.Dependencies {
			f.mu.Lock()
			defer f.mu.Unlock()
			ties := f.ties
			if f.lasts > 0 {
				ties.Expires, ties.Ends = time.Now().Add(f.lasts), true
			}
			return ties
		},
	}
}

// revoked is a server with a fakeAccess.
type revoked struct {
	*running
	*side
	fake    *fakeAccess
	senders map[string]bool // of watches
}

func newRevoked(t *testing.T) *revoked {
	t.Helper()
	return newRevokedWith(t, func(*fakeAccess, *Config) {})
}

func newRevokedWith(t *testing.T, adapt func(*fakeAccess, *Config)) *revoked {
	t.Helper()
	r := &revoked{fake: newFakeAccess(), senders: make(map[string]bool)}
	back := registrytest.New(t, nil)
	r.running = serveBackWith(t, back, func(c *Config) {
		c.Authenticator = authenticator.RequestFunc(r.fake.AuthenticateRequest)
		c.Authorizer, c.Revocation = r.fake, r.fake.revocation()
		adapt(r.fake, c)
	})
	r.side = r.running.side(t, back, r.client(t).Transport)
	r.must(t, r.as("root", post("/api/v1/namespaces", `{"metadata":{"name":"a"}}`)))
	r.must(t, r.as("root", post(configmaps, configmap("one", "", ""))))
	return r
}

func (*revoked) as(who string, c call) call {
	c.header = map[string]string{"Authorization": who}
	return c
}

// open opens a watch and reads one event.
func (r *revoked) open(t *testing.T, who string, header http.Header) *bufio.Reader {
	t.Helper()
	in := r.begin(t, who, header, "")
	expect(t, in, "ADDED one")
	return in
}

// begin opens a watch with further parameters.
func (r *revoked) begin(t *testing.T, who string, header http.Header, query string) *bufio.Reader {
	t.Helper()
	return r.beginAt(t, who, header, configmaps+"?watch=1"+query)
}

// beginAt opens a stream.
func (r *revoked) beginAt(t *testing.T, who string, header http.Header, path string) *bufio.Reader {
	t.Helper()
	req, _ := http.NewRequest("GET", "https://"+r.addr+path, nil)
	if header != nil {
		req.Header = header.Clone()
	}
	req.Header.Set("Authorization", who)
	r.senders[who] = true
	resp, err := r.client(t).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: got status %d, want 200", who, resp.StatusCode)
	}
	return bufio.NewReader(resp.Body)
}

// endsWithin limits how long a watch may continue after its right is lost: twelve times the server's promise, for a
// busy machine.
const endsWithin = 12 * 5 * time.Second

// awaitEnd waits for the clean end of a watch whose right is lost.
func awaitEnd(t *testing.T, in io.Reader) {
	t.Helper()
	rest := make(chan error, 1)
	go func() {
		left, err := io.ReadAll(in)
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("got %q before the end", left)
		}
		rest <- err
	}()
	select {
	case err := <-rest:
		if err != nil {
			t.Errorf("the watch did not end like a complete response: %v", err)
		}
	case <-time.After(endsWithin):
		t.Fatal("the watch continues")
	}
}

// round waits until every watch was checked since the last change, except watches that have lost their right.
func (r *revoked) round(t *testing.T) {
	t.Helper()
	p := r.fake
	proctest.Eventually(t, "all watches were checked", func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		for who := range r.senders {
			at, identified := p.identified[who]
			if !p.denied[who] && !p.unknown[who] && (!identified || at != p.generation.Load() || p.authorized[who] != p.changes.Load()) {
				return fmt.Errorf("the watch of %s was not", who)
			}
		}
		return nil
	})
}

// TestRevokedWatches checks that a watch ends like a complete response when its sender is no longer authenticated or
// authorized. The next request of its client is refused. Other watches continue.
func TestRevokedWatches(t *testing.T) {
	t.Parallel()
	r := newRevoked(t)
	jane, joe, jim := r.open(t, "jane", nil), r.open(t, "joe", nil), r.open(t, "jim", nil)
	acting := r.open(t, "boss", http.Header{"Impersonate-User": {"jim"}})

	r.fake.change(&r.fake.changes, func() { r.fake.denied["jane"] = true })
	awaitEnd(t, jane)
	if got := r.call(t, r.as("jane", get(configmaps+"?watch=1"))); got.code != http.StatusForbidden {
		t.Errorf("without permission: got status %d, want 403", got.code)
	}
	r.fake.change(&r.fake.generation, func() { r.fake.unknown["joe"] = true })
	awaitEnd(t, joe)
	if got := r.call(t, r.as("joe", get(configmaps+"?watch=1"))); got.code != http.StatusUnauthorized {
		t.Errorf("unknown user: got status %d, want 401", got.code)
	}
	r.fake.change(&r.fake.changes, func() { r.fake.denied["boss"] = true })
	awaitEnd(t, acting)
	const counted = `
# HELP larder_watches_revoked_total Counter of watches that were ended because their sender lost the right to them, by what was lost: the credential or the permission.
# TYPE larder_watches_revoked_total counter
larder_watches_revoked_total{lost="credential"} 1
larder_watches_revoked_total{lost="permission"} 2
`
	if err := testutil.CollectAndCompare(r.rights.Collector(), strings.NewReader(counted)); err != nil {
		t.Error(err)
	}
	r.must(t, r.as("root", post(configmaps, configmap("two", "", ""))))
	expect(t, jim, "ADDED two")
}

// TestRevokedStatusPage checks that the stream of the status page ends when its reader loses the right to it.
func TestRevokedStatusPage(t *testing.T) {
	t.Parallel()
	r := newRevokedWith(t, func(_ *fakeAccess, c *Config) { c.StatusPage = true })
	in := r.beginAt(t, "jane", nil, request.StatusPath+"?watch=1")
	if _, err := in.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	r.fake.change(&r.fake.changes, func() { r.fake.denied["jane"] = true })
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, in)
		ended <- err
	}()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(endsWithin):
		t.Fatal("the stream continues")
	}
}

// TestRevokedWebsocket checks that a watch over a websocket, which upstream's handler serves, ends with a
// close frame.
func TestRevokedWebsocket(t *testing.T) {
	t.Parallel()
	r := newRevoked(t)
	c := r.dial(t)
	fmt.Fprintf(c, "GET %s?watch=1 HTTP/1.1\r\nHost: h\r\nAuthorization: jane\r\nOrigin: https://h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n", configmaps)
	in := bufio.NewReader(c)
	resp, err := http.ReadResponse(in, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("got %v and error %v, want status 101", resp, err)
	}
	first, err := in.ReadBytes('}') // it may be revoked before it has sent the initial events
	if err != nil || !bytes.Contains(first, []byte(`"ADDED"`)) {
		t.Fatalf("got first frame %q and error %v, want an ADDED event", first, err)
	}
	r.fake.change(&r.fake.changes, func() { r.fake.denied["jane"] = true })
	rest, err := io.ReadAll(in)
	if err != nil || !bytes.HasSuffix(rest, []byte{0x88, 2, 0x03, 0xe8}) {
		t.Errorf("got %q and error %v, want a close frame with code 1000 at the end", rest, err)
	}
}

// TestRevocationIsShared checks that the watches of one sender share authorizations: a change costs far fewer than one
// for each watch.
func TestRevocationIsShared(t *testing.T) {
	t.Parallel()
	r := newRevoked(t)
	const watches = 50
	for range watches {
		r.open(t, "jane", nil)
	}
	r.round(t)
	before := r.fake.authorizations.Load()
	r.fake.change(&r.fake.changes, func() {})
	proctest.Eventually(t, "jane is authorized again", func() error {
		if r.fake.authorizations.Load() == before {
			return errors.New("not yet")
		}
		return nil
	})
	r.round(t) // jane is authorized at most three times more
	if n := r.fake.authorizations.Load() - before; n > watches/2 {
		t.Errorf("a change cost %d authorizations for %d watches of one sender, want at most %d", n, watches, watches/2)
	}
}

// TestRevocationOutlivesOutages checks that watches continue while no authorizer can decide.
func TestRevocationOutlivesOutages(t *testing.T) {
	t.Parallel()
	r := newRevoked(t)
	jane, acting := r.open(t, "jane", nil), r.open(t, "boss", http.Header{"Impersonate-User": {"jim"}})
	r.round(t) // otherwise the next round might skip boss, who cannot be authenticated then
	before := make(map[string]int64)
	r.fake.change(&r.fake.changes, func() {
		r.fake.unavailable = true
		maps.Copy(before, r.fake.about)
	})
	proctest.Eventually(t, "both are authorized repeatedly", func() error {
		r.fake.mu.Lock()
		defer r.fake.mu.Unlock()
		for _, who := range []string{"jane", "boss"} {
			if n := r.fake.about[who] - before[who]; n < 3 {
				return fmt.Errorf("%s was authorized %d times, want at least 3", who, n)
			}
		}
		return nil
	})
	r.fake.change(&r.fake.generation, func() { r.fake.unavailable = false })
	r.round(t)
	r.must(t, r.as("root", post(configmaps, configmap("two", "", ""))))
	expect(t, jane, "ADDED two")
	expect(t, acting, "ADDED two")
}

// TestImpersonatorsAreAuthenticatedFirst checks that the rights of an impersonating client are checked only after
// it is authenticated. The impersonated user need not have the right to impersonate.
func TestImpersonatorsAreAuthenticatedFirst(t *testing.T) {
	t.Parallel()
	r := newRevoked(t)
	r.fake.change(new(atomic.Uint64), func() { r.fake.silent["boss"], r.fake.subject["jim"] = true, true })
	acting := r.open(t, "boss", http.Header{"Impersonate-User": {"jim"}})
	before := r.fake.authentications.Load()
	proctest.Eventually(t, "boss is authenticated repeatedly", func() error {
		if r.fake.authentications.Load() < before+3 {
			return errors.New("not yet")
		}
		return nil
	})
	r.must(t, r.as("root", post(configmaps, configmap("two", "", ""))))
	expect(t, acting, "ADDED two")
	r.fake.change(&r.fake.changes, func() {
		delete(r.fake.silent, "boss")
		r.fake.subject["boss"] = true
	})
	awaitEnd(t, acting)
}

// TestSlowAuthorizersDelayNoOtherRevocations checks that watches whose rights are decided locally end at once,
// however many reviews remote authorizers leave unanswered. Watches that depend on those continue.
func TestSlowAuthorizersDelayNoOtherRevocations(t *testing.T) {
	t.Parallel()
	r := newRevokedWith(t, func(p *fakeAccess, c *Config) { c.Revocation, c.Authorizer = p.withRemote(c.Revocation) })
	const crowd = 2 * revocation.RemoteConcurrency
	var far []*bufio.Reader
	for i := range crowd {
		far = append(far, r.open(t, fmt.Sprint("far", i), nil))
	}
	jane, joe := r.open(t, "jane", nil), r.open(t, "joe", nil)
	r.round(t)
	defer r.fake.unblockRemote()
	for who, lost := range map[string]struct {
		counter *atomic.Uint64
		of      map[string]bool
		watch   *bufio.Reader
	}{
		"jane": {&r.fake.changes, r.fake.denied, jane},
		"joe":  {&r.fake.generation, r.fake.unknown, joe},
	} {
		r.fake.change(lost.counter, func() {
			r.fake.blockRemoteLocked()
			lost.of[who] = true
		})
		awaitEnd(t, lost.watch)
		r.fake.unblockRemote()
		r.round(t)
	}
	r.must(t, r.as("root", post(configmaps, configmap("two", "", ""))))
	for _, in := range far {
		expect(t, in, "ADDED two")
	}
}

// TestWebhooksAndTokenProvidersEndWatches checks that a client loses its watch when a webhook or token provider
// refuses it, though these announce no changes.
func TestWebhooksAndTokenProvidersEndWatches(t *testing.T) {
	t.Parallel()
	r := newRevokedWith(t, func(p *fakeAccess, c *Config) { c.Revocation, c.Authorizer = p.withRemote(c.Revocation) })
	r.fake.remote.Store(true)
	r.fake.change(new(atomic.Uint64), func() { r.fake.ties = auth.Dependencies{Remote: true} })
	jane, one, two := r.open(t, "jane", nil), r.open(t, "far1", nil), r.open(t, "far2", nil)
	acting := r.open(t, "far3", http.Header{"Impersonate-User": {"jim"}})
	r.round(t)
	for who, c := range map[string]struct {
		of    map[string]bool
		watch *bufio.Reader
	}{"far1": {r.fake.denied, one}, "far2": {r.fake.unknown, two}, "far3": {r.fake.subject, acting}} {
		r.fake.change(new(atomic.Uint64), func() { c.of[who] = true }) // no event announces the change
		awaitEnd(t, c.watch)
	}
	r.must(t, r.as("root", post(configmaps, configmap("two", "", ""))))
	expect(t, jane, "ADDED two")
}

// TestRevocationFollowsObjectsAndExpiry checks that a right that depends on an object is checked when the object
// changes, and one that expires when it expires.
func TestRevocationFollowsObjectsAndExpiry(t *testing.T) {
	t.Parallel()
	r := newRevoked(t)
	r.fake.change(new(atomic.Uint64), func() {
		r.fake.ties = auth.Dependencies{Objects: []auth.ObjectName{{Resource: "secrets", Namespace: "a", Name: "token"}}}
	})
	const secrets = "/api/v1/namespaces/a/secrets"
	r.must(t, r.as("root", post(secrets, `{"metadata":{"name":"token"}}`)))
	jane := r.open(t, "jane", nil)
	r.fake.change(new(atomic.Uint64), func() { r.fake.ties = auth.Dependencies{} })
	r.round(t)
	r.fake.change(new(atomic.Uint64), func() { r.fake.unknown["jane"] = true }) // no event announces the change
	r.must(t, r.as("root", del(secrets+"/token")))
	awaitEnd(t, jane)

	var list metav1.PartialObjectMetadataList
	decode(t, r.must(t, r.as("root", get(configmaps))).body, &list)
	r.fake.change(new(atomic.Uint64), func() { r.fake.lasts = 2 * time.Second })
	// This watch has no events to send; otherwise it might end before it has sent them all.
	joe := r.begin(t, "joe", nil, "&resourceVersion="+list.ResourceVersion)
	awaitEnd(t, joe)
}
