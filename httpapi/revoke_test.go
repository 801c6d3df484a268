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
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/larder-io/larder/httpapi/request"
	"github.com/larder-io/larder/internal/auth"
	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/registry/registrytest"
)

// power decides who is known and who may do anything, and counts how often it is asked
// by whom. What it says can be changed.
type power struct {
	generation, changes atomic.Uint64
	asked               atomic.Int64 // about permissions
	known               atomic.Int64 // how often it was asked once more who somebody is
	remote              atomic.Bool

	mu      sync.Mutex
	unknown map[string]bool  // guarded by mu
	denied  map[string]bool  // guarded by mu
	mute    bool             // guarded by mu: neither can be told
	silent  map[string]bool  // guarded by mu: it cannot be told once more who they are
	subject map[string]bool  // guarded by mu: they may not act as others
	stuck   chan struct{}    // guarded by mu: nothing comes from elsewhere until it is closed; may be nil
	ties    auth.Ties        // guarded by mu
	about   map[string]int64 // guarded by mu: as asked, by name
}

func newPower() *power {
	return &power{
		unknown: make(map[string]bool), denied: make(map[string]bool), silent: make(map[string]bool),
		subject: make(map[string]bool), about: make(map[string]int64),
	}
}

func (p *power) change(counter *atomic.Uint64, change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	counter.Add(1)
}

var errMute = errors.New("nobody answers")

// AuthenticateRequest implements authenticator.Request.
func (p *power) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	resp, ok, err := named(req)
	if p.mute {
		return nil, false, errMute
	}
	return resp, ok && !p.unknown[resp.User.GetName()], err
}

// Authorize implements authorizer.Authorizer.
func (p *power) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked.Add(1)
	p.about[a.GetUser().GetName()]++
	switch {
	case p.subject[a.GetUser().GetName()] && strings.HasPrefix(a.GetVerb(), "impersonate"):
		return authorizer.DecisionNoOpinion, "", nil
	case p.mute:
		return authorizer.DecisionNoOpinion, "", errMute
	case p.denied[a.GetUser().GetName()]:
		return authorizer.DecisionNoOpinion, "", nil
	}
	return authorizer.DecisionAllow, "", nil
}

// again authenticates once more.
func (p *power) again(req *http.Request) (*authenticator.Response, bool, error) {
	p.known.Add(1)
	p.mu.Lock()
	silent := p.silent[req.Header.Get("Authorization")]
	p.mu.Unlock()
	if silent {
		return nil, false, errMute
	}
	return p.AuthenticateRequest(req)
}

// elsewhere reports whether others are to be asked about somebody.
func elsewhere(who string) bool { return strings.HasPrefix(who, "far") }

// wait waits while those who are asked about somebody are stuck, however long they may be.
func (p *power) wait(who string) {
	p.mu.Lock()
	stuck := p.stuck
	p.mu.Unlock()
	if stuck != nil && elsewhere(who) {
		<-stuck
	}
}

// stick makes others stuck. It must be called with mu held.
func (p *power) stick() { p.stuck = make(chan struct{}) }

// loosen undoes that.
func (p *power) loosen() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stuck != nil {
		close(p.stuck)
		p.stuck = nil
	}
}

// farther has others asked about some.
func (p *power) farther(r *auth.Revocation) (*auth.Revocation, authorizer.Authorizer) {
	gate := authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		p.wait(a.GetUser().GetName())
		return p.Authorize(ctx, a)
	})
	r.Again = authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
		p.wait(req.Header.Get("Authorization"))
		return p.again(req)
	})
	r.Near = authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
		if elsewhere(req.Header.Get("Authorization")) {
			return nil, false, auth.ErrOthers
		}
		return p.again(req)
	})
	r.Gate = authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if elsewhere(a.GetUser().GetName()) {
			return authorizer.DecisionNoOpinion, "", auth.ErrOthers
		}
		return p.Authorize(ctx, a)
	})
	return r, gate
}

func (p *power) revocation() *auth.Revocation {
	return &auth.Revocation{
		Again: authenticator.RequestFunc(p.again), Generation: p.generation.Load, Remote: p.remote.Load,
		Authority: func() (uint64, uint64) { return p.changes.Load(), 0 },
		Ties: func(*http.Request) auth.Ties {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.ties
		},
	}
}

// revoked is a server that asks a power.
type revoked struct {
	*running
	*side
	power *power
}

func newRevoked(t *testing.T) *revoked {
	t.Helper()
	return newRevokedWith(t, func(*power, *Config) {})
}

func newRevokedWith(t *testing.T, adapt func(*power, *Config)) *revoked {
	t.Helper()
	r := &revoked{power: newPower()}
	back := registrytest.New(t, nil)
	r.running = serveBackWith(t, back, func(c *Config) {
		c.Authenticator = authenticator.RequestFunc(r.power.AuthenticateRequest)
		c.Authorizer, c.Revocation = r.power, r.power.revocation()
		adapt(r.power, c)
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

// open opens a watch that has told of one object.
func (r *revoked) open(t *testing.T, who string, header http.Header) *bufio.Reader {
	t.Helper()
	req, _ := http.NewRequest("GET", "https://"+r.addr+configmaps+"?watch=1", nil)
	if header != nil {
		req.Header = header.Clone()
	}
	req.Header.Set("Authorization", who)
	resp, err := r.client(t).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %d", who, resp.StatusCode)
	}
	in := bufio.NewReader(resp.Body)
	expect(t, in, "ADDED one")
	return in
}

// revocation bounds how long a watch may go on whose right is lost: what the server
// promises, with as much again and more for a machine that has other work.
const revocation = 4 * 5 * time.Second

// awaitEnd waits for the clean end of a watch whose right is lost.
func awaitEnd(t *testing.T, in io.Reader) {
	t.Helper()
	rest := make(chan error, 1)
	go func() {
		left, err := io.ReadAll(in)
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("still told %q", left)
		}
		rest <- err
	}()
	select {
	case err := <-rest:
		if err != nil {
			t.Errorf("the watch did not end well: %v", err)
		}
	case <-time.After(revocation):
		t.Fatal("the watch goes on")
	}
}

// round waits until every right was looked at: a watch whose client lost its right
// meanwhile has ended.
func (r *revoked) round(t *testing.T) {
	t.Helper()
	in := r.open(t, "canary", nil)
	r.power.change(&r.power.changes, func() { r.power.denied["canary"] = true })
	awaitEnd(t, in)
	r.power.change(&r.power.changes, func() { delete(r.power.denied, "canary") })
	proctest.Eventually(t, "everything was looked at", r.rights.idle)
}

// idle fails while there is anything to look at or to ask.
func (r *rights) idle() error {
	now := r.marks()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.agenda.seen != now || len(r.agenda.next) > 0 {
		return errors.New("there is something to look at")
	}
	for _, l := range []*pool{&r.near, &r.identities, &r.permissions} {
		l.mu.Lock()
		running := l.running
		l.mu.Unlock()
		if running > 0 {
			return errors.New("somebody is asked")
		}
	}
	r.told.mu.Lock()
	defer r.told.mu.Unlock()
	if len(r.told.list) > 0 {
		return errors.New("there is an answer")
	}
	return nil
}

// TestRevokedWatches: a watch ends, as one ends that is complete, when its sender is not
// known any more or may not watch any more; its client is told why when it comes back.
// Others go on.
func TestRevokedWatches(t *testing.T) {
	r := newRevoked(t)
	jane, joe, jim := r.open(t, "jane", nil), r.open(t, "joe", nil), r.open(t, "jim", nil)
	acting := r.open(t, "boss", http.Header{"Impersonate-User": {"jim"}})

	r.power.change(&r.power.changes, func() { r.power.denied["jane"] = true })
	awaitEnd(t, jane)
	if got := r.call(t, r.as("jane", get(configmaps+"?watch=1"))); got.code != http.StatusForbidden {
		t.Errorf("without permission: %d", got.code)
	}
	r.power.change(&r.power.generation, func() { r.power.unknown["joe"] = true })
	awaitEnd(t, joe)
	if got := r.call(t, r.as("joe", get(configmaps+"?watch=1"))); got.code != http.StatusUnauthorized {
		t.Errorf("unknown: %d", got.code)
	}
	r.power.change(&r.power.changes, func() { r.power.denied["boss"] = true })
	awaitEnd(t, acting)
	if credential, permission := r.rights.ended[lossCredential].Load(), r.rights.ended[lossPermission].Load(); credential != 1 || permission != 2 {
		t.Errorf("%d lost credentials and %d lost permissions are counted", credential, permission)
	}
	r.must(t, r.as("root", post(configmaps, configmap("two", "", ""))))
	expect(t, jim, "ADDED two")
	r.rights.mu.Lock()
	defer r.rights.mu.Unlock()
	for _, c := range r.rights.known {
		if name := c.who.GetName(); name != "jim" {
			t.Errorf("%s, who watches nothing, is known still", name)
		}
	}
}

// TestRevokedWebsocket: a watch over a websocket, which upstream's handler serves, ends
// with a frame that says so.
func TestRevokedWebsocket(t *testing.T) {
	r := newRevoked(t)
	c := r.dial(t)
	fmt.Fprintf(c, "GET %s?watch=1 HTTP/1.1\r\nHost: h\r\nAuthorization: jane\r\nOrigin: https://h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n", configmaps)
	in := bufio.NewReader(c)
	resp, err := http.ReadResponse(in, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v %v", resp, err)
	}
	r.power.change(&r.power.changes, func() { r.power.denied["jane"] = true })
	told, err := io.ReadAll(in)
	if err != nil || !bytes.Contains(told, []byte(`"ADDED"`)) || !bytes.HasSuffix(told, []byte{0x88, 2, 0x03, 0xe8}) {
		t.Errorf("told %q, %v", told, err)
	}
}

// TestRevocationIsShared: a thousand watches of one sender cost one question each time
// that something changed, and none while nothing does.
func TestRevocationIsShared(t *testing.T) {
	r := newRevoked(t)
	const watches = 50
	for range watches {
		r.open(t, "jane", nil)
	}
	r.round(t)
	before := r.power.asked.Load()
	r.power.change(&r.power.changes, func() {})
	proctest.Eventually(t, "jane is asked about", func() error {
		if r.power.asked.Load() == before {
			return errors.New("not yet")
		}
		return nil
	})
	r.round(t) // in which jane is asked about at most three times more, and the canary four times
	if n := r.power.asked.Load() - before; n > watches/2 {
		t.Errorf("%d watches cost %d questions", watches, n)
	}
}

// TestRevocationOutlivesOutages: while nobody can tell who may watch, watches go on.
func TestRevocationOutlivesOutages(t *testing.T) {
	r := newRevoked(t)
	jane, acting := r.open(t, "jane", nil), r.open(t, "boss", http.Header{"Impersonate-User": {"jim"}})
	r.round(t) // else the boss, whose identity nobody could tell, might not be asked about
	before := make(map[string]int64)
	r.power.change(&r.power.changes, func() {
		r.power.mute = true
		maps.Copy(before, r.power.about)
	})
	proctest.Eventually(t, "they are asked about, again and again", func() error {
		r.power.mu.Lock()
		defer r.power.mu.Unlock()
		for _, who := range []string{"jane", "boss"} {
			if n := r.power.about[who] - before[who]; n < 3 {
				return fmt.Errorf("%s: %d times", who, n)
			}
		}
		return nil
	})
	r.power.change(&r.power.generation, func() { r.power.mute = false })
	r.round(t)
	r.must(t, r.as("root", post(configmaps, configmap("two", "", ""))))
	expect(t, jane, "ADDED two")
	expect(t, acting, "ADDED two")
}

// TestWhoActsAsAnotherIsKnownFirst: what a client that impersonates another user may do is
// not asked before it is known who the client is: the other user need not have the right
// to impersonate.
func TestWhoActsAsAnotherIsKnownFirst(t *testing.T) {
	r := newRevoked(t)
	r.power.change(new(atomic.Uint64), func() { r.power.silent["boss"], r.power.subject["jim"] = true, true })
	acting := r.open(t, "boss", http.Header{"Impersonate-User": {"jim"}})
	before := r.power.known.Load()
	proctest.Eventually(t, "it is asked who he is, again and again", func() error {
		if r.power.known.Load() < before+3 {
			return errors.New("not yet")
		}
		return nil
	})
	r.must(t, r.as("root", post(configmaps, configmap("two", "", ""))))
	expect(t, acting, "ADDED two")
	r.power.change(&r.power.changes, func() {
		delete(r.power.silent, "boss")
		r.power.subject["boss"] = true
	})
	awaitEnd(t, acting)
}

// TestSlowJudgesKeepNobodyWaiting: rights that are decided here end at once, however many
// questions others leave unanswered; and who hangs on those goes on.
func TestSlowJudgesKeepNobodyWaiting(t *testing.T) {
	r := newRevokedWith(t, func(p *power, c *Config) { c.Revocation, c.Authorizer = p.farther(c.Revocation) })
	const crowd = 2 * remoteCrowd
	var far []*bufio.Reader
	for i := range crowd {
		far = append(far, r.open(t, fmt.Sprint("far", i), nil))
	}
	jane, joe := r.open(t, "jane", nil), r.open(t, "joe", nil)
	r.round(t)
	defer r.power.loosen()
	for who, lost := range map[string]struct {
		counter *atomic.Uint64
		of      map[string]bool
		watch   *bufio.Reader
	}{
		"jane": {&r.power.changes, r.power.denied, jane},
		"joe":  {&r.power.generation, r.power.unknown, joe},
	} {
		r.power.change(lost.counter, func() {
			r.power.stick()
			lost.of[who] = true
		})
		awaitEnd(t, lost.watch)
		r.power.loosen()
		r.round(t)
	}
	r.must(t, r.as("root", post(configmaps, configmap("two", "", ""))))
	for _, in := range far {
		expect(t, in, "ADDED two")
	}
}

// TestOthersEndWatches: a client loses its watch when a webhook or a provider of tokens
// refuses it, though these announce no changes.
func TestOthersEndWatches(t *testing.T) {
	r := newRevokedWith(t, func(p *power, c *Config) { c.Revocation, c.Authorizer = p.farther(c.Revocation) })
	r.power.remote.Store(true)
	r.power.change(new(atomic.Uint64), func() { r.power.ties = auth.Ties{Remote: true} })
	jane, one, two := r.open(t, "jane", nil), r.open(t, "far1", nil), r.open(t, "far2", nil)
	acting := r.open(t, "far3", http.Header{"Impersonate-User": {"jim"}})
	r.round(t)
	for who, c := range map[string]struct {
		of    map[string]bool
		watch *bufio.Reader
	}{"far1": {r.power.denied, one}, "far2": {r.power.unknown, two}, "far3": {r.power.subject, acting}} {
		r.power.change(new(atomic.Uint64), func() { c.of[who] = true }) // nobody tells
		awaitEnd(t, c.watch)
	}
	r.must(t, r.as("root", post(configmaps, configmap("two", "", ""))))
	expect(t, jane, "ADDED two")
}

// TestLooksComeToRest: what nobody could tell, or what is near its end, is not asked again
// and again without a pause.
func TestLooksComeToRest(t *testing.T) {
	now := time.Now()
	for name, prepare := range map[string]func(*power, *credential){
		"all is well":                func(*power, *credential) {},
		"nobody answers":             func(p *power, _ *credential) { p.mute = true },
		"who acts as another":        func(_ *power, c *credential) { c.impersonates = true },
		"who that is nobody says":    func(p *power, c *credential) { p.silent["jane"], c.impersonates = true, true },
		"expired, and good still":    func(_ *power, c *credential) { c.ties.Expires = now.Add(-time.Second) },
		"others are asked":           func(p *power, c *credential) { p.remote.Store(true); c.ties.Remote = true },
		"others do not answer":       func(p *power, c *credential) { p.remote.Store(true); c.ties.Remote, p.mute = true, true },
		"somebody else since":        func(_ *power, c *credential) { c.who = &user.DefaultInfo{Name: "joe"} },
		"he hangs on what is unread": func(_ *power, c *credential) { c.ties.Objects = []auth.ObjectName{{Resource: "pods", Name: "x"}} },
	} {
		p := newPower()
		s := newServer(Config{Authenticator: p, Authorizer: p, Revocation: p.revocation()})
		defer s.cancel()
		jane := &user.DefaultInfo{Name: "jane"}
		header := http.Header{"Authorization": {"jane"}, "Impersonate-User": {"jim"}}
		c := &credential{request: httptest.NewRequest("GET", "/", nil), rights: make(map[string]*right), who: jane}
		c.request.Header = header
		held := &right{of: c, holders: 1, info: &apirequest.RequestInfo{Verb: "watch"}}
		held.attributes.Request, held.attributes.User = &request.Request{Verb: "watch"}, jane
		prepare(p, c)
		r := s.rights
		c.rights[""], r.known[c.key] = held, c
		r.agenda.enter(c)
		for range 4 {
			r.look(t.Context(), now)
			for _, l := range []*pool{&r.near, &r.identities, &r.permissions} {
				l.asking.Wait()
			}
		}
		if err := r.idle(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if len(r.known) == 0 {
			t.Errorf("%s: he lost his rights", name)
		}
	}
}

// TestRevocationByTies: a right that depends on an object is checked when the object
// changes, one that expires when it does; it ends then if the credential says so itself.
func TestRevocationByTies(t *testing.T) {
	r := newRevoked(t)
	r.power.change(new(atomic.Uint64), func() {
		r.power.ties = auth.Ties{Objects: []auth.ObjectName{{Resource: "secrets", Namespace: "a", Name: "token"}}}
	})
	const secrets = "/api/v1/namespaces/a/secrets"
	r.must(t, r.as("root", post(secrets, `{"metadata":{"name":"token"}}`)))
	jane := r.open(t, "jane", nil)
	r.power.change(new(atomic.Uint64), func() { r.power.ties = auth.Ties{} })
	r.round(t)
	r.power.change(new(atomic.Uint64), func() { r.power.unknown["jane"] = true }) // nobody tells
	r.must(t, r.as("root", del(secrets+"/token")))
	awaitEnd(t, jane)

	r.power.change(new(atomic.Uint64), func() { r.power.ties = auth.Ties{Expires: time.Now().Add(2 * time.Second), Ends: true} })
	joe := r.open(t, "joe", nil)
	awaitEnd(t, joe)
}

// TestRevocationSwitchedOff: where nobody is to be asked, nothing is kept of senders.
func TestRevocationSwitchedOff(t *testing.T) {
	p := newPair(t)
	p.ours.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"a"}}`))
	p.ours.must(t, post(configmaps, configmap("one", "", "")))
	_, in := p.openWatch(t, configmaps+"?watch=1", "application/json")
	expect(t, in, "ADDED one")
	p.rights.mu.Lock()
	defer p.rights.mu.Unlock()
	if n := len(p.rights.known); n != 0 {
		t.Errorf("%d senders are known", n)
	}
}

// BenchmarkQuietRound looks after ten thousand senders of five watches each, of whom
// nothing has changed. It is done once a second.
func BenchmarkQuietRound(b *testing.B) {
	p := newPower()
	s := newServer(Config{Authenticator: p, Authorizer: p, Revocation: p.revocation()})
	for i := range 10_000 {
		c := &credential{rights: make(map[string]*right), asked: true}
		c.key[0], c.key[1] = byte(i), byte(i>>8)
		s.rights.known[c.key] = c
		for j := range 5 {
			key := fmt.Sprint(j)
			c.rights[key] = &right{of: c, key: key, holders: 1, asked: true}
		}
	}
	now := time.Now()
	s.rights.look(b.Context(), now) // at all
	b.ReportAllocs()
	for b.Loop() {
		s.rights.look(b.Context(), now)
	}
	if p.asked.Load() != 0 {
		b.Error("somebody was asked")
	}
}
