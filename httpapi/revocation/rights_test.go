package revocation

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/identity"
	"github.com/larder-io/larder/httpapi/streams"
	"github.com/larder-io/larder/internal/auth"
)

// fakeAccess authenticates every request as jane, allows her everything, and counts its calls.
type fakeAccess struct {
	calls        atomic.Int64
	failing      bool   // authentication and authorization fail
	authnFailing bool   // authentication fails
	remote       bool   // a webhook takes part in authorization
	losses       uint64 // of nodes
}

var errUnavailable = errors.New("unavailable")

var jane = &user.DefaultInfo{Name: "jane"}

// AuthenticateRequest implements authenticator.Request.
func (f *fakeAccess) AuthenticateRequest(*http.Request) (*authenticator.Response, bool, error) {
	f.calls.Add(1)
	if f.failing || f.authnFailing {
		return nil, false, errUnavailable
	}
	return &authenticator.Response{User: jane}, true, nil
}

// Authorize implements authorizer.Authorizer.
func (f *fakeAccess) Authorize(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	f.calls.Add(1)
	if f.failing {
		return authorizer.DecisionNoOpinion, "", errUnavailable
	}
	return authorizer.DecisionAllow, "", nil
}

// newRights returns Rights whose authenticator and authorizer are j. The local ones decide as the others do.
func newRights(j *fakeAccess) *Rights {
	r := New(Config{
		Revocation: &auth.Revocation{
			Authenticator: j, Generation: func() uint64 { return 0 }, Remote: func() bool { return j.remote },
			AuthorizerChanges: func() uint64 { return 0 }, NodeChanges: func(user.Info) uint64 { return 0 },
		},
		Authorizer: j, Headers: identity.NewHeaders(nil), Digester: identity.NewDigester(), Streams: streams.New(),
	})
	c := r.config.Revocation
	c.LocalAuthenticator = authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
		return c.Authenticator.AuthenticateRequest(req)
	})
	c.LocalAuthorizer = authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		return r.config.Authorizer.Authorize(ctx, a)
	})
	return r
}

// decideRemotely makes the decisions within this process fail with auth.ErrRemote.
func (r *Rights) decideRemotely() {
	r.config.Revocation.LocalAuthenticator = authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
		return nil, false, auth.ErrRemote
	})
	r.config.Revocation.LocalAuthorizer = authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
		return authorizer.DecisionNoOpinion, "", auth.ErrRemote
	})
}

// janesWatch returns the right of a watch by jane, and its credential. The credential's request also names jim as the
// user to impersonate.
func janesWatch() (*credential, *right) {
	c := &credential{request: httptest.NewRequest("GET", "/", nil), who: jane}
	c.request.Header = http.Header{"Authorization": {"jane"}, "Impersonate-User": {"jim"}}
	return c, &right{attributes: authorizer.AttributesRecord{User: jane, Verb: "watch"}, info: &apirequest.RequestInfo{Verb: "watch"}}
}

// enter adds c with one right.
func (r *Rights) enter(c *credential, key [sha256.Size]byte, what string, held *right) {
	r.join(key, what, func() *credential { return c }, func() *right { return held })
}

// runRound starts the checks that are due, and waits for them.
func (r *Rights) runRound(t *testing.T, now time.Time) {
	r.look(t.Context(), now)
	r.running.Wait()
}

// TestUndecidedChecksArePaced checks that a credential is not checked again without a pause if no authorizer can
// decide, or if it is near its end.
func TestUndecidedChecksArePaced(t *testing.T) {
	now := time.Now()
	for name, prepare := range map[string]func(*fakeAccess, *credential){
		"allowed":                            func(*fakeAccess, *credential) {},
		"all checks fail":                    func(j *fakeAccess, _ *credential) { j.failing = true },
		"impersonation":                      func(_ *fakeAccess, c *credential) { c.impersonates = true },
		"impersonation, authenticator fails": func(j *fakeAccess, c *credential) { j.authnFailing, c.impersonates = true, true },
		"expired, but still accepted":        func(_ *fakeAccess, c *credential) { c.ties.Expires = now.Add(-time.Second) },
		"webhooks":                           func(j *fakeAccess, c *credential) { j.remote, c.ties.Remote = true, true },
		"webhooks that fail":                 func(j *fakeAccess, c *credential) { j.remote, c.ties.Remote, j.failing = true, true, true },
		"user that has changed":              func(_ *fakeAccess, c *credential) { c.who = &user.DefaultInfo{Name: "joe"} },
		"object without a cache":             func(_ *fakeAccess, c *credential) { c.ties.Objects = []auth.ObjectName{{Resource: "pods", Name: "x"}} },
	} {
		j := new(fakeAccess)
		c, held := janesWatch()
		prepare(j, c)
		r := newRights(j)
		r.enter(c, [sha256.Size]byte{}, "", held)
		for range 4 {
			r.runRound(t, now)
		}
		if due := r.newRound(t.Context(), now).claim(); len(due) > 0 {
			t.Errorf("%s: %d credentials are due again at once, want none", name, len(due))
		}
		if len(r.known) != 1 {
			t.Errorf("%s: the watch lost its right", name)
		}
		if j.calls.Load() == 0 {
			t.Errorf("%s: authenticator and authorizer were never called", name)
		}
	}
}

// TestChangedUsersAreAuthorizedAgain checks that a right is authorized again when its credential belongs to another user,
// or to the same user with another UID, other groups or other extra fields.
func TestChangedUsersAreAuthorizedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		before    *user.DefaultInfo
		questions int
	}{
		"nothing": {&user.DefaultInfo{Name: "jane"}, 0},
		"name":    {&user.DefaultInfo{Name: "joe"}, 1},
		"UID":     {&user.DefaultInfo{Name: "jane", UID: "1"}, 1},
		"groups":  {&user.DefaultInfo{Name: "jane", Groups: []string{"dev"}}, 1},
		"extra":   {&user.DefaultInfo{Name: "jane", Extra: map[string][]string{"scopes": {"view"}}}, 1},
	} {
		var authorized []user.Info
		r := newRights(new(fakeAccess))
		r.config.Authorizer = authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			authorized = append(authorized, a.GetUser())
			return authorizer.DecisionAllow, "", nil
		})
		held := &right{asked: true}
		held.attributes = authorizer.AttributesRecord{User: c.before, Verb: "watch"}
		r.enter(&credential{request: httptest.NewRequest("GET", "/", nil), who: c.before}, [sha256.Size]byte{}, "", held)
		r.runRound(t, time.Now())
		if len(authorized) != c.questions || len(authorized) > 0 && authorized[0] != user.Info(jane) {
			t.Errorf("%s changed: authorized %v, want %d authorizations of %v", name, authorized, c.questions, jane)
		}
	}
}

// TestNodesThatLostAccessAreAuthorizedAgain has two nodes that watch a secret each, and a third node with a watch of
// a collection. Only nodes that lost access to an object must be authorized again.
func TestNodesThatLostAccessAreAuthorizedAgain(t *testing.T) {
	j := new(fakeAccess)
	r := newRights(j)
	lost := make(map[string]uint64)
	r.config.Revocation.NodeChanges = func(node user.Info) uint64 { return lost[node.GetName()] }
	join := func(i byte, name string, single bool) {
		who := &user.DefaultInfo{Name: name}
		held := &right{single: single}
		held.attributes = authorizer.AttributesRecord{User: who, Verb: "watch"}
		r.enter(&credential{request: httptest.NewRequest("GET", "/", nil), who: who, asked: true}, [sha256.Size]byte{i}, "", held)
	}
	join(1, "system:node:a", true)
	join(2, "system:node:b", true)
	join(3, "system:node:c", false)
	authorizations := func(now time.Time) int64 {
		before := int64(j.calls.Load())
		r.runRound(t, now)
		return int64(j.calls.Load()) - before
	}
	now := time.Now()
	if n := authorizations(now); n != 3 {
		t.Fatalf("%d authorizations when the watches began, want 3", n)
	}
	if n := authorizations(now); n != 0 {
		t.Errorf("%d authorizations when nothing has changed, want 0", n)
	}
	lost["system:node:a"]++
	if n := authorizations(now); n != 1 {
		t.Errorf("%d authorizations when a node has lost access, want 1", n)
	}
	if n := authorizations(now); n != 0 {
		t.Errorf("%d authorizations after that, want 0", n)
	}
	lost["system:node:a"]++
	lost["system:node:b"]++
	if n := authorizations(now); n != 2 {
		t.Errorf("%d authorizations when two nodes have lost access, want 2", n)
	}
}

// TestImpersonationIsCheckedAgain checks that a watch ends when its client may no longer impersonate the user. The
// client was authenticated long ago, and only the authorizer reports the change. Until the client is authenticated again,
// the impersonated user must not be mistaken for it.
func TestImpersonationIsCheckedAgain(t *testing.T) {
	j := &fakeAccess{authnFailing: true}
	r := newRights(j)
	var changes uint64
	r.config.Revocation.AuthorizerChanges = func() uint64 { return changes }
	r.config.Authorizer = authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if strings.HasPrefix(a.GetVerb(), "impersonate") && (changes > 0 || a.GetUser() != user.Info(jane)) {
			return authorizer.DecisionNoOpinion, "", nil
		}
		return authorizer.DecisionAllow, "", nil
	})
	c, held := janesWatch()
	c.impersonates, c.who = true, &user.DefaultInfo{Name: "jim"}
	r.enter(c, [sha256.Size]byte{}, "", held)
	now := time.Now()
	for _, step := range []struct {
		name   string
		change func()
		lost   bool
	}{
		{"the client cannot be authenticated", func() {}, false},
		{"it is authenticated", func() { j.authnFailing = false }, false},
		{"it may no longer impersonate", func() { changes++ }, true},
	} {
		step.change()
		now = now.Add(interval)
		r.runRound(t, now)
		if held.Lost() != step.lost {
			t.Errorf("%s: lost %t, want %t", step.name, held.Lost(), step.lost)
		}
		if known := len(r.known); (known == 0) != step.lost || r.local.busy != 0 {
			t.Errorf("%s: %d credentials are known, %d goroutines are counted", step.name, known, r.local.busy)
		}
	}
}

// TestRightsAreAuthorizedAgain checks that a right of an impersonated node is authorized again when the node has lost
// access, and that a right that a webhook decides is authorized again every few seconds.
func TestRightsAreAuthorizedAgain(t *testing.T) {
	for name, prepare := range map[string]func(*fakeAccess, *credential) (change func()){
		"impersonated node": func(j *fakeAccess, c *credential) func() {
			c.impersonates = true
			return func() { j.losses++ }
		},
		"webhook": func(j *fakeAccess, _ *credential) func() {
			j.remote = true
			return func() {}
		},
	} {
		j := new(fakeAccess)
		r := newRights(j)
		c, held := janesWatch()
		held.single, held.attributes.User = true, &user.DefaultInfo{Name: "system:node:a"}
		change := prepare(j, c)
		r.config.Revocation.NodeChanges = func(node user.Info) uint64 {
			if node.GetName() == "jane" {
				return 0
			}
			return j.losses
		}
		r.enter(c, [sha256.Size]byte{}, "", held)
		now := time.Now()
		for range 3 {
			r.runRound(t, now)
		}
		before := j.calls.Load()
		change()
		r.runRound(t, now.Add(remoteInterval))
		if j.calls.Load() == before {
			t.Errorf("%s: the right is not authorized again", name)
		}
	}
}

// TestDecisionsAboutAnotherUserAreIgnored changes the user of a credential during a slow call of a webhook. The decision
// about the old user must neither end the watch nor count for the new one.
func TestDecisionsAboutAnotherUserAreIgnored(t *testing.T) {
	for _, v := range []verdict{undecided, allowed, denied} {
		r := newRights(new(fakeAccess))
		c, held := janesWatch()
		c.asked = true
		r.enter(c, [sha256.Size]byte{}, "", held)
		now := time.Now()
		round := r.newRound(t.Context(), now)
		round.decide(&question{held: held, who: &user.DefaultInfo{Name: "joe"}}, v)
		if held.Lost() {
			t.Errorf("verdict %d about joe ended jane's watch", v)
		}
		if due := r.newRound(t.Context(), now).claim(); len(due) != 1 {
			t.Errorf("verdict %d about joe: jane's right is not checked in the next round", v)
		}
	}
}

// TestDecidedRightsAreCheckedAfterChanges checks that later rounds skip a credential once all its rights are decided, until
// a right is added or a counter grows.
func TestDecidedRightsAreCheckedAfterChanges(t *testing.T) {
	j := new(fakeAccess)
	r := newRights(j)
	var all, losses uint64
	r.config.Revocation.AuthorizerChanges = func() uint64 { return all }
	r.config.Revocation.NodeChanges = func(user.Info) uint64 { return losses }
	c := &credential{request: httptest.NewRequest("GET", "/", nil), who: jane, asked: true}
	join := func(what string) {
		held := &right{single: true, attributes: authorizer.AttributesRecord{User: jane, Verb: "watch"}}
		r.enter(c, [sha256.Size]byte{}, what, held)
	}
	for _, step := range []struct {
		name   string
		change func()
		want   int64
	}{
		{"the first right", func() { join("a") }, 1},
		{"another right", func() { join("b") }, 1},
		{"a change for all", func() { all++ }, 2},
		{"a change for the node", func() { losses++ }, 2},
		{"another user", func() { c.changeUserLocked(jane) }, 2},
		{"nothing", func() {}, 0},
	} {
		before := j.calls.Load()
		step.change()
		for range 3 {
			r.runRound(t, time.Now())
		}
		if n := j.calls.Load() - before; n != step.want {
			t.Errorf("%s: %d authorizations, want %d", step.name, n, step.want)
		}
		if !c.decided.known {
			t.Errorf("%s: the next round would not skip the credential", step.name)
		}
	}
}

// TestLossesDuringAnAuthorization checks that a right is authorized again in the next round if its node loses access
// during an authorization.
func TestLossesDuringAnAuthorization(t *testing.T) {
	j := new(fakeAccess)
	r := newRights(j)
	var lost atomic.Uint64
	r.config.Revocation.NodeChanges = func(user.Info) uint64 { return lost.Load() }
	r.config.Authorizer = authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if j.calls.Load() == 0 {
			lost.Add(1)
		}
		return j.Authorize(ctx, a)
	})
	c, held := janesWatch()
	c.asked, held.single = true, true
	r.enter(c, [sha256.Size]byte{}, "", held)
	for range 4 {
		r.runRound(t, time.Now())
	}
	if n := j.calls.Load(); n != 2 {
		t.Errorf("%d authorizations, want 2: one more after the loss", n)
	}
}

// BenchmarkQuietRound runs rounds over ten thousand credentials with five watches each, without changes. The server runs
// one round a second.
func BenchmarkQuietRound(b *testing.B) {
	j := new(fakeAccess)
	r := newRights(j)
	for i := range 10_000 {
		c := &credential{asked: true}
		key := [sha256.Size]byte{byte(i), byte(i >> 8)}
		for what := range 5 {
			r.enter(c, key, fmt.Sprint(what), &right{asked: true})
		}
	}
	now := time.Now()
	r.look(b.Context(), now) // the first round checks all rights
	b.ReportAllocs()
	for b.Loop() {
		r.look(b.Context(), now)
	}
	if j.calls.Load() != 0 {
		b.Error("the authenticator or authorizer was called")
	}
}

// bearer is the carrier of a request with a token, and with further fields: pairs of a name and a value.
type bearer struct {
	exchange.Carrier
	further []string
}

func (bearer) Internal() bool            { return false }
func (bearer) TLS() *tls.ConnectionState { return nil }
func (bearer) RemoteAddr() net.Addr      { return &net.TCPAddr{} }

func (b bearer) Lines() iter.Seq2[[]byte, []byte] {
	return func(yield func([]byte, []byte) bool) {
		if !yield([]byte("Authorization"), []byte("Bearer jane")) {
			return
		}
		for field := range slices.Chunk(b.further, 2) {
			if !yield([]byte(field[0]), []byte(field[1])) {
				return
			}
		}
	}
}

// TestRequestsWithDifferentHeadersShareNoCredential checks that two clients which impersonate different users have
// different credentials, even if the fields of one header are values in the other.
func TestRequestsWithDifferentHeadersShareNoCredential(t *testing.T) {
	r := newRights(new(fakeAccess))
	r.config.Revocation.Dependencies = func(*http.Request) auth.Dependencies { return auth.Dependencies{} }
	var held []streams.Right
	join := func(further ...string) *credential {
		x := &exchange.Exchange{Carrier: bearer{further: further}, Received: time.Now(), User: jane}
		if err := x.Parse("GET", "/api/v1/secrets?watch=1"); err != nil {
			t.Fatal(err)
		}
		held = append(held, r.Join(x))
		return held[len(held)-1].(*right).of
	}
	const user, group = "Impersonate-User", "Impersonate-Group"
	bob := join(group, "dev", user, "bob", user, user, user, "alice")
	if join(group, "dev", group, user, group, "bob", user, "alice") == bob {
		t.Error("clients that impersonate bob and alice have the same credential")
	}
	if join(group, "dev", user, "bob", user, user, user, "alice") != bob {
		t.Error("two equal requests have different credentials")
	}
	if join("User-Agent", "other", group, "dev", user, "bob", user, user, user, "alice") != bob || bob.request.Header.Get("Authorization") == "" {
		t.Errorf("a User-Agent changes the credential, or its request lacks the token: %v", bob.request.Header)
	}
	if join() == bob || held[0].(*right).info == nil || held[len(held)-1].(*right).info != nil {
		t.Error("a right has request info without impersonation, or lacks it with impersonation")
	}
	for _, h := range held {
		h.Leave()
	}
	if len(r.known) != 0 {
		t.Errorf("%d credentials are kept without watches", len(r.known))
	}
}

// TestExpiryEndsOnlyCredentialsThatWereValid checks that the expiry of a credential ends its watches only if they
// began before it.
func TestExpiryEndsOnlyCredentialsThatWereValid(t *testing.T) {
	for ends, after := range map[bool]time.Duration{true: time.Second, false: -time.Second} {
		r := newRights(new(fakeAccess))
		x := &exchange.Exchange{Carrier: bearer{}, Received: time.Now(), User: jane}
		expires := x.Received.Add(after)
		r.config.Revocation.Dependencies = func(*http.Request) auth.Dependencies {
			return auth.Dependencies{Ends: true, Expires: expires}
		}
		if err := x.Parse("GET", "/api/v1/secrets?watch=1"); err != nil {
			t.Fatal(err)
		}
		if ties := r.Join(x).(*right).of.ties; ties.Ends != ends || ties.Expires.IsZero() == ends {
			t.Errorf("expires %v after the watch began: got %+v, want Ends %t", after, ties, ends)
		}
	}
}

// TestRightsDoNotKeepRequests checks that an open watch does not keep its request in memory. Watches are open for minutes,
// and each node has tens of them.
func TestRightsDoNotKeepRequests(t *testing.T) {
	r := newRights(new(fakeAccess))
	r.config.Revocation.Dependencies = func(*http.Request) auth.Dependencies { return auth.Dependencies{} }
	opening := func() (streams.Right, weak.Pointer[exchange.Exchange]) {
		x := &exchange.Exchange{Carrier: bearer{}, Received: time.Now(), User: jane}
		if err := x.Parse("GET", "/api/v1/namespaces/a/secrets?watch=1&fieldSelector=metadata.name%3Db"); err != nil {
			t.Fatal(err)
		}
		return r.Join(x), weak.Make(x)
	}
	held, x := opening()
	for range 2 {
		runtime.GC()
	}
	if x.Value() != nil {
		t.Error("the right of an open watch keeps the request in memory")
	}
	got := held.(*right).attributes
	want := authorizer.AttributesRecord{
		User: jane, ResourceRequest: true, Path: "/api/v1/namespaces/a/secrets", Verb: "watch", APIVersion: "v1",
		Namespace: "a", Resource: "secrets", Name: "b",
		FieldSelectorRequirements: fields.Requirements{{Operator: selection.Equals, Field: "metadata.name", Value: "b"}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got attributes\n%+v, want\n%+v", got, want)
	}
}
