package revocation

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/larder-io/larder/httpapi/identity"
	"github.com/larder-io/larder/httpapi/request"
	"github.com/larder-io/larder/httpapi/streams"
	"github.com/larder-io/larder/internal/auth"
)

// judge knows jane, who may do anything, and counts how often it is asked.
type judge struct {
	asked        atomic.Int64
	mute, silent bool // it cannot tell what she may do, or who she is
	remote       bool
}

var errMute = errors.New("nobody answers")

var jane = &user.DefaultInfo{Name: "jane"}

// AuthenticateRequest implements authenticator.Request.
func (j *judge) AuthenticateRequest(*http.Request) (*authenticator.Response, bool, error) {
	j.asked.Add(1)
	if j.mute || j.silent {
		return nil, false, errMute
	}
	return &authenticator.Response{User: jane}, true, nil
}

// Authorize implements authorizer.Authorizer.
func (j *judge) Authorize(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	j.asked.Add(1)
	if j.mute {
		return authorizer.DecisionNoOpinion, "", errMute
	}
	return authorizer.DecisionAllow, "", nil
}

// newRights returns rights that j decides about.
func newRights(j *judge) *Rights {
	return New(Config{
		Revocation: &auth.Revocation{
			Again: j, Generation: func() uint64 { return 0 }, Remote: func() bool { return j.remote },
			Authority: func() (uint64, uint64) { return 0, 0 },
		},
		Authorizer: j, Headers: identity.NewHeaders(nil), Digester: identity.NewDigester(), Streams: streams.New(),
	})
}

// join enters c and one right of its.
func (r *Rights) join(c *credential, key [sha256.Size]byte, what string, held *right) {
	r.ledger.join(key, what, func() *credential { return c }, func() *right { return held })
}

// TestLooksComeToRest: what nobody could tell, or what is near its end, is not asked again
// and again without a pause.
func TestLooksComeToRest(t *testing.T) {
	now := time.Now()
	for name, prepare := range map[string]func(*judge, *credential){
		"all is well":                func(*judge, *credential) {},
		"nobody answers":             func(j *judge, _ *credential) { j.mute = true },
		"who acts as another":        func(_ *judge, c *credential) { c.impersonates = true },
		"who that is nobody says":    func(j *judge, c *credential) { j.silent, c.impersonates = true, true },
		"expired, and good still":    func(_ *judge, c *credential) { c.ties.Expires = now.Add(-time.Second) },
		"others are asked":           func(j *judge, c *credential) { j.remote, c.ties.Remote = true, true },
		"others do not answer":       func(j *judge, c *credential) { j.remote, c.ties.Remote, j.mute = true, true, true },
		"somebody else since":        func(_ *judge, c *credential) { c.who = &user.DefaultInfo{Name: "joe"} },
		"he hangs on what is unread": func(_ *judge, c *credential) { c.ties.Objects = []auth.ObjectName{{Resource: "pods", Name: "x"}} },
	} {
		j := new(judge)
		c := &credential{request: httptest.NewRequest("GET", "/", nil), who: jane}
		c.request.Header = http.Header{"Authorization": {"jane"}, "Impersonate-User": {"jim"}}
		held := &right{info: &apirequest.RequestInfo{Verb: "watch"}}
		held.attributes.Request, held.attributes.User = &request.Request{Verb: "watch"}, jane
		prepare(j, c)
		r := newRights(j)
		r.join(c, [sha256.Size]byte{}, "", held)
		for range 4 {
			r.look(t.Context(), now)
			r.pools.wait()
		}
		s := r.Stats()
		if s.Busy {
			t.Errorf("%s: there is something to look at, or somebody is asked", name)
		}
		if s.Senders != 1 {
			t.Errorf("%s: she lost her rights", name)
		}
		if j.asked.Load() == 0 {
			t.Errorf("%s: nobody was asked", name)
		}
	}
}

// BenchmarkQuietRound looks after ten thousand senders of five watches each, of whom
// nothing has changed. It is done once a second.
func BenchmarkQuietRound(b *testing.B) {
	j := new(judge)
	r := newRights(j)
	for i := range 10_000 {
		c := &credential{asked: true}
		key := [sha256.Size]byte{byte(i), byte(i >> 8)}
		for what := range 5 {
			r.join(c, key, fmt.Sprint(what), &right{asked: true})
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
