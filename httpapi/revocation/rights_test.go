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
	asked        atomic.Int64
	mute, silent bool // authorization, authentication fails
	remote       bool
	losses       uint64 // of nodes
}

var errMute = errors.New("nobody answers")

var jane = &user.DefaultInfo{Name: "jane"}

// AuthenticateRequest implements authenticator.Request.
func (f *fakeAccess) AuthenticateRequest(*http.Request) (*authenticator.Response, bool, error) {
	f.asked.Add(1)
	if f.mute || f.silent {
		return nil, false, errMute
	}
	return &authenticator.Response{User: jane}, true, nil
}

// Authorize implements authorizer.Authorizer.
func (f *fakeAccess) Authorize(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	f.asked.Add(1)
	if f.mute {
		return authorizer.DecisionNoOpinion, "", errMute
	}
	return authorizer.DecisionAllow, "", nil
}

// newRights returns Rights whose authenticator and authorizer is j. The local ones decide as the others do.
func newRights(j *fakeAccess) *Rights {
	r := New(Config{
		Revocation: &auth.Revocation{
			Authenticator: j, Generation: func() uint64 { return 0 }, Remote: func() bool { return j.remote },
			AuthorizerChanges: func() (uint64, uint64) { return 0, 0 }, NodeChanges: func(user.Info) uint64 { return 0 },
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

// janesWatch returns a credential of jane, which names jim as the user that it impersonates, and a right.
func janesWatch() (*credential, *right) {
	c := &credential{request: httptest.NewRequest("GET", "/", nil), who: jane}
	c.request.Header = http.Header{"Authorization": {"jane"}, "Impersonate-User": {"jim"}}
	return c, &right{attributes: authorizer.AttributesRecord{User: jane, Verb: "watch"}, info: &apirequest.RequestInfo{Verb: "watch"}}
}

// enter adds c with one right.
func (r *Rights) enter(c *credential, key [sha256.Size]byte, what string, held *right) {
	r.join(key, what, func() *credential { return c }, func() *right { return held })
}

// TestUndecidedChecksArePaced checks that a credential is not checked again without a pause if no authorizer can
// decide, or if it is near its end.
func TestUndecidedChecksArePaced(t *testing.T) {
	now := time.Now()
	for name, prepare := range map[string]func(*fakeAccess, *credential){
		"all is well":                func(*fakeAccess, *credential) {},
		"nobody answers":             func(j *fakeAccess, _ *credential) { j.mute = true },
		"who acts as another":        func(_ *fakeAccess, c *credential) { c.impersonates = true },
		"who that is nobody says":    func(j *fakeAccess, c *credential) { j.silent, c.impersonates = true, true },
		"expired, and good still":    func(_ *fakeAccess, c *credential) { c.ties.Expires = now.Add(-time.Second) },
		"others are asked":           func(j *fakeAccess, c *credential) { j.remote, c.ties.Remote = true, true },
		"others do not answer":       func(j *fakeAccess, c *credential) { j.remote, c.ties.Remote, j.mute = true, true, true },
		"somebody else since":        func(_ *fakeAccess, c *credential) { c.who = &user.DefaultInfo{Name: "joe"} },
		"he hangs on what is unread": func(_ *fakeAccess, c *credential) { c.ties.Objects = []auth.ObjectName{{Resource: "pods", Name: "x"}} },
	} {
		j := new(fakeAccess)
		c, held := janesWatch()
		prepare(j, c)
		r := newRights(j)
		r.enter(c, [sha256.Size]byte{}, "", held)
		for range 4 {
			r.look(t.Context(), now)
			r.running.Wait()
		}
		if due := r.newRound(t.Context(), now).claim(); len(due) > 0 {
			t.Errorf("%s: there is something to look at, or somebody is asked", name)
		}
		if len(r.known) != 1 {
			t.Errorf("%s: she lost her rights", name)
		}
		if j.asked.Load() == 0 {
			t.Errorf("%s: nobody was asked", name)
		}
	}
}

// TestChangedUsersAreAskedAbout checks that the authorizer is asked again when a credential belongs to another user.
// The same holds for another UID, other groups and other extra fields.
func TestChangedUsersAreAskedAbout(t *testing.T) {
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
		var asked []user.Info
		r := newRights(new(fakeAccess))
		r.config.Authorizer = authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			asked = append(asked, a.GetUser())
			return authorizer.DecisionAllow, "", nil
		})
		held := &right{asked: true}
		held.attributes = authorizer.AttributesRecord{User: c.before, Verb: "watch"}
		r.enter(&credential{request: httptest.NewRequest("GET", "/", nil), who: c.before}, [sha256.Size]byte{}, "", held)
		r.look(t.Context(), time.Now())
		r.running.Wait()
		if len(asked) != c.questions || len(asked) > 0 && asked[0] != user.Info(jane) {
			t.Errorf("%s changed: asked about %v, want %d questions about %v", name, asked, c.questions, jane)
		}
	}
}

// TestRoundsAskAboutNodesThatLost has two nodes that watch a secret each, and one list of nodes that concerns
// neither. Only the node that lost something must be authorized again.
func TestRoundsAskAboutNodesThatLost(t *testing.T) {
	j := new(fakeAccess)
	r := newRights(j)
	var all uint64
	lost := make(map[string]uint64)
	r.config.Revocation.AuthorizerChanges = func() (uint64, uint64) { return 0, all }
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
	asked := func(now time.Time) int64 {
		before := int64(j.asked.Load())
		r.look(t.Context(), now)
		r.running.Wait()
		return int64(j.asked.Load()) - before
	}
	now := time.Now()
	if n := asked(now); n != 3 {
		t.Fatalf("%d questions when the watches began, want 3", n)
	}
	if n := asked(now); n != 0 {
		t.Errorf("%d questions when nothing has changed", n)
	}
	all++
	lost["system:node:a"]++
	if n := asked(now); n != 1 {
		t.Errorf("%d questions when a node has lost something, want 1", n)
	}
	if n := asked(now); n != 0 {
		t.Errorf("%d questions when all were asked", n)
	}
	all += 2
	lost["system:node:a"]++
	lost["system:node:b"]++
	if n := asked(now); n != 2 {
		t.Errorf("%d questions when two nodes have lost something, want 2", n)
	}
}

// TestImpersonationIsCheckedAgain checks that a watch ends when its client may no longer impersonate the user. The
// client was authenticated long ago, and only the authorizer reports the change. Until it is authenticated, the
// impersonated user must not be taken for it.
func TestImpersonationIsCheckedAgain(t *testing.T) {
	j := &fakeAccess{silent: true}
	r := newRights(j)
	var changes uint64
	r.config.Revocation.AuthorizerChanges = func() (uint64, uint64) { return changes, 0 }
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
		{"it is authenticated", func() { j.silent = false }, false},
		{"it may no longer impersonate", func() { changes++ }, true},
	} {
		step.change()
		now = now.Add(interval)
		r.look(t.Context(), now)
		r.running.Wait()
		if held.Lost() != step.lost {
			t.Errorf("%s: lost %t", step.name, held.Lost())
		}
		if known := len(r.known); (known == 0) != step.lost || r.local.busy != 0 {
			t.Errorf("%s: %d credentials are known, %d goroutines are counted", step.name, known, r.local.busy)
		}
	}
}

// TestRightsThatDoNotSettle checks that rounds ask again about an impersonated node when the node has lost something.
// They ask every few seconds while a webhook decides.
func TestRightsThatDoNotSettle(t *testing.T) {
	for name, prepare := range map[string]func(*fakeAccess, *credential) (ask func()){
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
		ask := prepare(j, c)
		r.config.Revocation.NodeChanges = func(node user.Info) uint64 {
			if node.GetName() == "jane" {
				return 0
			}
			return j.losses
		}
		r.enter(c, [sha256.Size]byte{}, "", held)
		now := time.Now()
		for range 3 {
			r.look(t.Context(), now)
			r.running.Wait()
		}
		before := j.asked.Load()
		ask()
		r.look(t.Context(), now.Add(remoteInterval))
		r.running.Wait()
		if j.asked.Load() == before {
			t.Errorf("%s: nothing is asked again", name)
		}
	}
}

// TestAnswersAboutAnotherUserDecideNothing changes the user of a credential while a slow webhook is asked. The response
// about the old user neither ends the watch nor settles the right of the new one.
func TestAnswersAboutAnotherUserDecideNothing(t *testing.T) {
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
			t.Errorf("verdict %d about joe: jane is not asked about", v)
		}
	}
}

// TestSettledRightsAreLookedAtAgain checks that later rounds skip a credential once all its rights are decided, until
// a right is added or a counter grows.
func TestSettledRightsAreLookedAtAgain(t *testing.T) {
	j := new(fakeAccess)
	r := newRights(j)
	var all, losses uint64
	r.config.Revocation.AuthorizerChanges = func() (uint64, uint64) { return all, losses }
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
		before := j.asked.Load()
		step.change()
		for range 3 {
			r.look(t.Context(), time.Now())
			r.running.Wait()
		}
		if n := j.asked.Load() - before; n != step.want {
			t.Errorf("%s: %d questions, want %d", step.name, n, step.want)
		}
		if !c.decided.known {
			t.Errorf("%s: the rights are not settled", step.name)
		}
	}
}

// TestLossesDuringAQuestionAreAskedAgain checks that a loss during an authorization is checked again in the next
// round.
func TestLossesDuringAQuestionAreAskedAgain(t *testing.T) {
	j := new(fakeAccess)
	r := newRights(j)
	var all, lost atomic.Uint64
	r.config.Revocation.AuthorizerChanges = func() (uint64, uint64) { return 0, all.Load() }
	r.config.Revocation.NodeChanges = func(user.Info) uint64 { return lost.Load() }
	r.config.Authorizer = authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if j.asked.Load() == 0 {
			lost.Add(1)
			all.Add(1)
		}
		return j.Authorize(ctx, a)
	})
	held := &right{single: true}
	held.attributes = authorizer.AttributesRecord{User: jane, Verb: "watch"}
	r.enter(&credential{request: httptest.NewRequest("GET", "/", nil), who: jane, asked: true}, [sha256.Size]byte{}, "", held)
	for range 4 {
		r.look(t.Context(), time.Now())
		r.running.Wait()
	}
	if n := j.asked.Load(); n != 2 {
		t.Errorf("%d questions, want one more after the loss", n)
	}
}

// BenchmarkQuietRound checks the rights of ten thousand senders with five watches each, without changes. The server
// does this once a second.
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
	r.look(b.Context(), now) // at all
	b.ReportAllocs()
	for b.Loop() {
		r.look(b.Context(), now)
	}
	if j.asked.Load() != 0 {
		b.Error("somebody was asked")
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
		t.Error("the credential of a client that impersonates bob is also that of one that impersonates alice")
	}
	if join(group, "dev", user, "bob", user, user, user, "alice") != bob {
		t.Error("the credential of two equal requests is not the same")
	}
	if join("User-Agent", "other", group, "dev", user, "bob", user, user, user, "alice") != bob || bob.request.Header.Get("Authorization") == "" {
		t.Errorf("the credential is not that of the fields that authenticate and impersonate: %v", bob.request.Header)
	}
	if join() == bob || held[0].(*right).info == nil || held[len(held)-1].(*right).info != nil {
		t.Error("not only the right of a client that impersonates has what decides about that")
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
			t.Errorf("expires %v after the watch began: %+v", after, ties)
		}
	}
}

// TestRightsHoldNothingOfTheirRequests checks that an open watch does not keep its request in memory: a watch is open
// for minutes, and each node has tens of them.
func TestRightsHoldNothingOfTheirRequests(t *testing.T) {
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
		t.Error("the request is held for as long as its watch is open")
	}
	got := held.(*right).attributes
	want := authorizer.AttributesRecord{
		User: jane, ResourceRequest: true, Path: "/api/v1/namespaces/a/secrets", Verb: "watch", APIVersion: "v1",
		Namespace: "a", Resource: "secrets", Name: "b",
		FieldSelectorRequirements: fields.Requirements{{Operator: selection.Equals, Field: "metadata.name", Value: "b"}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("kept\n%+v, want\n%+v", got, want)
	}
}
