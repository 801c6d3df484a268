package relay

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/larder-io/larder/httpapi/relay"
	"github.com/larder-io/larder/internal/auth"
)

var (
	errDown     = utilerrors.NewAggregate([]error{&url.Error{Op: "Post", Err: errors.New("connection refused")}})
	errTooLarge = utilerrors.NewAggregate([]error{apierrors.NewRequestEntityTooLargeError("limit is 3145728")}) // of a review
	errRefused  = utilerrors.NewAggregate([]error{errors.New("[invalid bearer token, it has expired]")})
)

// fakeReviewer authenticates and authorizes according to its fields.
type fakeReviewer struct {
	ok    bool
	err   error
	hangs bool // responds when the context ends
	calls int
}

func (o *fakeReviewer) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	if err := o.wait(req.Context()); err != nil {
		return nil, false, err
	}
	return &authenticator.Response{User: &user.DefaultInfo{Name: req.Header.Get("Authorization")}}, o.ok, nil
}

func (o *fakeReviewer) Authorize(ctx context.Context, _ authorizer.Attributes) (authorizer.Decision, string, error) {
	if err := o.wait(ctx); err != nil || !o.ok {
		return authorizer.DecisionNoOpinion, "not for you", err
	}
	return authorizer.DecisionAllow, "", nil
}

func (o *fakeReviewer) wait(ctx context.Context) error {
	o.calls++
	if o.hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	return o.err
}

// step is a review at a time, the upstream's response, and the client's result.
type step struct {
	after    time.Duration
	upstream fakeReviewer
	ok       bool
	err      bool
	calls    int
}

var (
	allows, refuses = fakeReviewer{ok: true}, fakeReviewer{}
	down, hangs     = fakeReviewer{err: errDown}, fakeReviewer{hangs: true}
)

// TestLastDecisions checks that the last decision is repeated only if the upstream does not respond, and only for a
// limited time. A refusal always counts.
func TestLastDecisions(t *testing.T) {
	for name, steps := range map[string][]step{
		"no review before":         {{0, down, false, true, 1}},
		"repeated":                 {{0, allows, true, false, 1}, {30 * time.Second, down, true, false, 1}, {29 * time.Second, down, true, false, 1}},
		"bounded":                  {{0, allows, true, false, 1}, {61 * time.Second, down, false, true, 1}},
		"repetitions do not renew": {{0, allows, true, false, 1}, {50 * time.Second, down, true, false, 1}, {11 * time.Second, down, false, true, 1}},
		"refused":                  {{0, allows, true, false, 1}, {time.Second, refuses, false, false, 1}, {time.Second, down, false, true, 1}},
		"silent":                   {{0, allows, true, false, 1}, {time.Second, hangs, true, false, 1}},
		"no second review at once": {{0, allows, true, false, 1}, {time.Second, hangs, true, false, 1}, {fallbackPause / 2, down, true, false, 0}, {fallbackPause, refuses, false, false, 1}},
		"back":                     {{0, allows, true, false, 1}, {61 * time.Second, down, false, true, 1}, {time.Second, allows, true, false, 1}},
	} {
		t.Run("token/"+name, func(t *testing.T) {
			o := new(fakeReviewer)
			authenticates := newDecisionFallback(time.Minute).authenticator(o)
			follow(t, o, steps, func(t *testing.T) (bool, error) {
				_, ok, err := authenticates.AuthenticateRequest(bearer(t, "anns"))
				return ok, err
			})
		})
		t.Run("request/"+name, func(t *testing.T) {
			o := new(fakeReviewer)
			authorizes := newDecisionFallback(time.Minute).authorizer(o)
			if name == "refused" { // the refusal is repeated
				steps[2].err = false
			}
			follow(t, o, steps, func(t *testing.T) (bool, error) {
				decision, _, err := authorizes.Authorize(t.Context(), pods(&user.DefaultInfo{Name: "ann"}, "hers"))
				return decision == authorizer.DecisionAllow, err
			})
		})
	}
}

// follow takes the steps, in virtual time.
func follow(t *testing.T, o *fakeReviewer, steps []step, review func(*testing.T) (bool, error)) {
	synctest.Test(t, func(t *testing.T) {
		for i, step := range steps {
			time.Sleep(step.after)
			*o = step.upstream
			began := time.Now()
			if ok, err := review(t); ok != step.ok || (err != nil) != step.err || o.calls != step.calls || time.Since(began) > fallbackTimeout {
				t.Errorf("step %d: got %t, error %v after %d calls and %v; want %+v", i, ok, err, o.calls, time.Since(began), step)
			}
		}
	})
}

// TestReasonsOfRefusals checks that an error that the upstream returned counts as a refusal.
func TestReasonsOfRefusals(t *testing.T) {
	o := &fakeReviewer{ok: true}
	a := newDecisionFallback(time.Minute).authenticator(o)
	for i, step := range []struct {
		err error
		ok  bool
	}{{nil, true}, {errTooLarge, false}, {nil, true}, {context.Canceled, false}, {errRefused, false}, {errDown, false}, {nil, true}, {apierrors.NewInternalError(errDown), true}} {
		o.err = step.err
		if _, ok, err := a.AuthenticateRequest(bearer(t, "anns")); ok != step.ok {
			t.Errorf("step %d: %v, %v", i, ok, err)
		}
	}
}

// TestReviewsAreForbidden checks that reads go through if the relay has no right to create reviews, and that nothing
// else does.
func TestReviewsAreForbidden(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "subjectaccessreviews"}, "", errors.New("not for relays"))
	authorizes := newDecisionFallback(time.Minute).authorizer(&fakeReviewer{err: utilerrors.NewAggregate([]error{forbidden})})
	for through, change := range map[bool]func(*authorizer.AttributesRecord){
		true: func(*authorizer.AttributesRecord) {}, false: func(a *authorizer.AttributesRecord) { a.Verb = "impersonate" },
	} {
		a := pods(&user.DefaultInfo{Name: "ann"}, "hers")
		change(&a)
		decision, _, err := authorizes.Authorize(t.Context(), a)
		if decision != authorizer.DecisionNoOpinion || errors.Is(err, relay.ErrNoReviews) != through || !auth.IsUnreachable(err) {
			t.Errorf("%s: decision %v, error %v; want no opinion and an unreachable upstream", a.Verb, decision, err)
		}
	}
}

// TestDecisionsAreOfOneRequest checks that a decision is repeated only for the same credential and request.
func TestDecisionsAreOfOneRequest(t *testing.T) {
	s := newDecisionFallback(time.Minute)
	seen := make(map[digest]int)
	for i, change := range []func(*http.Request){
		func(*http.Request) {},
		func(req *http.Request) { req.Header.Set("Authorization", "Bearer other") },
		func(req *http.Request) { req.Header["Authorization"] = []string{"Bearer", "anns"} },
		func(req *http.Request) { req.Header.Set("Sec-Websocket-Protocol", "x") },
		func(req *http.Request) {
			req.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{Raw: []byte("a")}}}
		},
	} {
		req := bearer(t, "anns")
		change(req)
		key, ok := s.credentialKey(req)
		if last, known := seen[key]; known || !ok {
			t.Errorf("credential %d is that of %d, %v", i, last, ok)
		}
		seen[key] = i
	}
	if _, ok := s.credentialKey(bearer(t, "")); ok {
		t.Error("a client without a token has a key")
	}
	named := func(u user.DefaultInfo) func(*authorizer.AttributesRecord) {
		return func(a *authorizer.AttributesRecord) { a.User = &u }
	}
	clear(seen)
	for i, change := range []func(*authorizer.AttributesRecord){
		func(*authorizer.AttributesRecord) {},
		named(user.DefaultInfo{Name: "bob"}), named(user.DefaultInfo{Name: "ann", UID: "1"}), named(user.DefaultInfo{Name: "ann", Groups: []string{"a", "b"}}),
		named(user.DefaultInfo{Name: "ann", Groups: []string{"ab"}}), named(user.DefaultInfo{Name: "ann", Extra: map[string][]string{"a": {"b"}}}),
		named(user.DefaultInfo{Name: "ann", Extra: map[string][]string{"a": {}, "b": {}}}),
		func(a *authorizer.AttributesRecord) { a.Verb = "watch" }, func(a *authorizer.AttributesRecord) { a.Name = "x" },
		func(a *authorizer.AttributesRecord) { a.Namespace = "his" }, func(a *authorizer.AttributesRecord) { a.Resource = "secrets" },
		func(a *authorizer.AttributesRecord) { a.Subresource = "log" }, func(a *authorizer.AttributesRecord) { a.APIGroup = "apps" },
		func(a *authorizer.AttributesRecord) { a.APIVersion = "v2" }, func(a *authorizer.AttributesRecord) { a.Path = "/x" },
		func(a *authorizer.AttributesRecord) { a.ResourceRequest = false },
		func(a *authorizer.AttributesRecord) {
			a.FieldSelectorRequirements = fields.ParseSelectorOrDie("metadata.name=x").Requirements()
		},
	} {
		a := pods(&user.DefaultInfo{Name: "ann"}, "hers")
		change(&a)
		key, err := s.attributesKey(a)
		if last, known := seen[key]; known || err != nil {
			t.Errorf("request %d is %d, %v", i, last, err)
		}
		seen[key] = i
	}
}

// TestLaterDecisionsCount checks that a late decision does not replace the decision of a later review.
func TestLaterDecisionsCount(t *testing.T) {
	m, now := newDecisionFallback(time.Hour).users, time.Now()
	refusal, approval := &pastDecision{requested: now}, &pastDecision{requested: now.Add(-time.Minute), response: new(authenticator.Response)}
	m.add(digest{}, refusal)
	m.add(digest{}, approval)
	if m.get(digest{}) != refusal {
		t.Error("an older approval replaces a refusal")
	}
}

// TestLargeDecisionsAreNotRemembered checks that large users and reasons do not fill the memory.
func TestLargeDecisionsAreNotRemembered(t *testing.T) {
	s := newDecisionFallback(time.Hour)
	many := &user.DefaultInfo{Name: "ann", Groups: make([]string, 2*maxDecisionSize)}
	for name, large := range map[string]*pastDecision{"user": {response: &authenticator.Response{User: many}}, "reason": {reason: strings.Repeat("x", 2*maxDecisionSize)}} {
		large.requested = time.Now()
		s.users.add(digest{}, large)
		if s.users.get(digest{}) != nil {
			t.Error(name)
		}
	}
}

// TestNothingIsRepeatedWithoutABound checks that by default no decision is repeated.
func TestNothingIsRepeatedWithoutABound(t *testing.T) {
	o := &fakeReviewer{ok: true}
	a := newDecisionFallback(0).authenticator(o)
	if _, ok, _ := a.AuthenticateRequest(bearer(t, "anns")); !ok {
		t.Fatal("refused")
	}
	o.err = errDown
	if _, ok, err := a.AuthenticateRequest(bearer(t, "anns")); ok || err == nil {
		t.Errorf("authenticated: %t, error %v; want an error", ok, err)
	}
}
