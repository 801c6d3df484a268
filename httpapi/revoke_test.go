package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/larder-io/larder/internal/auth"
	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/registry/registrytest"
)

// power decides who is known and who may do anything, and counts how often it is asked
// by whom. What it says can be changed.
type power struct {
	generation, changes atomic.Uint64
	asked               atomic.Int64 // about permissions

	mu      sync.Mutex
	unknown map[string]bool // guarded by mu
	denied  map[string]bool // guarded by mu
	mute    bool            // guarded by mu: neither can be told
	ties    auth.Ties       // guarded by mu
}

func newPower() *power {
	return &power{unknown: make(map[string]bool), denied: make(map[string]bool)}
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
	switch {
	case p.mute:
		return authorizer.DecisionNoOpinion, "", errMute
	case p.denied[a.GetUser().GetName()]:
		return authorizer.DecisionNoOpinion, "", nil
	}
	return authorizer.DecisionAllow, "", nil
}

func (p *power) revocation() *auth.Revocation {
	return &auth.Revocation{
		Again: p, Generation: p.generation.Load, Remote: func() bool { return false },
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
	r := &revoked{power: newPower()}
	back := registrytest.New(t, nil)
	r.running = serveBackWith(t, back, func(c *Config) {
		c.Authenticator = authenticator.RequestFunc(r.power.AuthenticateRequest)
		c.Authorizer, c.Revocation = r.power, r.power.revocation()
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

// awaitEnd waits for the clean end of a watch.
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
	case <-time.After(proctest.Patience):
		t.Fatal("the watch goes on")
	}
}

// round waits until everything was looked at: a watch of somebody who lost his right
// meanwhile has ended.
func (r *revoked) round(t *testing.T) {
	t.Helper()
	in := r.open(t, "canary", nil)
	r.power.change(&r.power.changes, func() { r.power.denied["canary"] = true })
	awaitEnd(t, in)
	r.power.change(&r.power.changes, func() { delete(r.power.denied, "canary") })
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
	before := r.power.asked.Load()
	r.power.change(&r.power.changes, func() { r.power.mute = true })
	proctest.Eventually(t, "they are asked about, again and again", func() error {
		if r.power.asked.Load() < before+6 {
			return errors.New("not yet")
		}
		return nil
	})
	r.power.change(&r.power.generation, func() { r.power.mute = false })
	r.round(t)
	r.must(t, r.as("root", post(configmaps, configmap("two", "", ""))))
	expect(t, jane, "ADDED two")
	expect(t, acting, "ADDED two")
}

// TestRevocationByTies: who hangs on an object is asked about when it changes, who expires
// when he does; and then it is over, if the credential says so itself.
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
	b.ReportAllocs()
	for b.Loop() {
		s.rights.look(b.Context(), now)
	}
	if p.asked.Load() != 0 {
		b.Error("somebody was asked")
	}
}
