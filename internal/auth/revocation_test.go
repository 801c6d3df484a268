package auth

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// webToken returns an unsigned JSON web token with the claims.
func webToken(claims string) string {
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(`{"alg":"none"}`)) + "." + encode([]byte(claims)) + "." + encode([]byte("x"))
}

// TestDependenciesAreReadFromCredentials checks that the expiry and the bound objects are read from tokens and
// certificates, in every header that may hold a token.
func TestDependenciesAreReadFromCredentials(t *testing.T) {
	a := &reauthenticator{issuers: []string{"https://here"}}
	at := time.Unix(2_000_000_000, 0)
	for name, c := range map[string]struct {
		header http.Header
		chain  []*x509.Certificate
		want   Dependencies
	}{
		"nobody": {},
		"bound account": {
			header: http.Header{"Authorization": {"Bearer " + webToken(`{"iss":"https://here","exp":2000000000,"kubernetes.io":{"namespace":"a","serviceaccount":{"name":"robot"},"pod":{"name":"p"},"node":{"name":"n"}}}`)}},
			want:   Dependencies{Expires: at, Objects: []ObjectName{{"serviceaccounts", "a", "robot"}, {"pods", "a", "p"}, {"nodes", "", "n"}}},
		},
		"websocket": {
			header: http.Header{"Sec-Websocket-Protocol": {"x, base64url.bearer.authorization.k8s.io." + base64.RawURLEncoding.EncodeToString([]byte(
				webToken(`{"iss":"https://here","kubernetes.io":{"namespace":"a","serviceaccount":{"name":"robot"},"secret":{"name":"s"}}}`)))}},
			want: Dependencies{Objects: []ObjectName{{"serviceaccounts", "a", "robot"}, {"secrets", "a", "s"}}},
		},
		"legacy account": {
			header: http.Header{"Authorization": {"bearer " + webToken(`{"iss":"kubernetes/serviceaccount","kubernetes.io/serviceaccount/namespace":"a","kubernetes.io/serviceaccount/service-account.name":"robot","kubernetes.io/serviceaccount/secret.name":"s"}`)}},
			want:   Dependencies{Objects: []ObjectName{{"serviceaccounts", "a", "robot"}, {"secrets", "a", "s"}}},
		},
		"another issuer": {
			header: http.Header{"Authorization": {"Bearer " + webToken(`{"iss":"https://there","exp":2000000000.7}`)}},
			want:   Dependencies{Expires: at, Ends: true, Remote: true},
		},
		"no web token": {header: http.Header{"Authorization": {"Bearer a.b.c"}}, want: Dependencies{Remote: true}},
		"certificate": {
			chain: []*x509.Certificate{{NotAfter: at.Add(time.Hour)}, {NotAfter: at}},
			want:  Dependencies{Expires: at},
		},
	} {
		req := &http.Request{Header: c.header}
		if c.chain != nil {
			req.TLS = &tls.ConnectionState{PeerCertificates: c.chain}
		}
		got := a.dependencies(req)
		if !got.Expires.Equal(c.want.Expires) || got.Ends != c.want.Ends || got.Remote != c.want.Remote || !slices.Equal(got.Objects, c.want.Objects) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// TestRejectionsDifferFromUnavailability checks that a rejected credential is reported without an error, and that an
// authenticator that cannot decide returns an error.
func TestRejectionsDifferFromUnavailability(t *testing.T) {
	says := func(ok bool, err error) authenticator.Request {
		return authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
			return &authenticator.Response{User: &user.DefaultInfo{Name: "x"}}, ok, err
		})
	}
	// invalidated returns upstream's error for an object whose lookup failed.
	invalidated := func(cause error) authenticator.Request {
		return authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
			_, _ = lookedUp(req.Context(), 0, cause)
			return nil, false, errors.New("service account token has been invalidated")
		})
	}
	unknown := errors.New(refusedToken)
	down, gone := &url.Error{Op: "Post", Err: errors.New("connection refused")}, apierrors.NewNotFound(schema.GroupResource{}, "x")
	_, unread := lookedUp(t.Context(), 0, down)
	local := http.Header{"Authorization": {"Bearer " + webToken(`{"iss":"https://here"}`)}}
	other := http.Header{"Authorization": {"Bearer opaque"}}
	for name, c := range map[string]struct {
		again   reauthenticator
		header  http.Header
		ok      bool
		unknown bool
		others  bool // remote authenticators must be called: ErrRemote
	}{
		"accepted":                     {again: reauthenticator{local: says(true, nil), remote: says(false, down)}, header: other, ok: true},
		"accepted elsewhere":           {again: reauthenticator{local: says(false, unknown), remote: says(true, nil)}, header: other, ok: true, others: true},
		"rejected":                     {again: reauthenticator{local: says(false, nil)}, header: other},
		"rejected by all":              {again: reauthenticator{local: says(false, unknown), remote: says(false, unknown)}, header: other, others: true},
		"webhook gives a reason":       {again: reauthenticator{remote: says(false, errors.New("[invalid bearer token, token has expired]"))}, header: other, others: true},
		"webhook may not be called":    {again: reauthenticator{remote: says(false, utilerrors.NewAggregate([]error{apierrors.NewForbidden(schema.GroupResource{}, "x", unknown)}))}, header: other, unknown: true, others: true},
		"webhook is too slow":          {again: reauthenticator{remote: says(false, utilerrors.NewAggregate([]error{context.DeadlineExceeded}))}, header: other, unknown: true, others: true},
		"webhook is down":              {again: reauthenticator{remote: says(false, down)}, header: other, unknown: true, others: true},
		"own token, webhook is down":   {again: reauthenticator{local: says(false, unknown), remote: says(false, down)}, header: local, others: true},
		"own token, all are called":    {again: reauthenticator{local: says(false, errors.New("token has expired")), remote: says(false, unknown)}, header: local, others: true},
		"object is gone":               {again: reauthenticator{local: invalidated(gone)}, header: local},
		"object cannot be read":        {again: reauthenticator{local: invalidated(down)}, header: local, unknown: true},
		"webhook rejects as well":      {again: reauthenticator{local: invalidated(down), remote: says(false, unknown)}, header: local, unknown: true},
		"secret cannot be read":        {again: reauthenticator{local: says(false, utilerrors.NewAggregate([]error{unread}))}, header: other, unknown: true},
		"provider rejects":             {again: reauthenticator{remote: says(false, errors.New("oidc: verify token: oidc: token is expired"))}, header: other, others: true},
		"provider is unreachable":      {again: reauthenticator{remote: says(false, errors.New("oidc: verify token: failed to verify signature: fetching keys oidc: get keys failed"))}, header: other, unknown: true, others: true},
		"provider was never reached":   {again: reauthenticator{remote: says(false, errors.New("oidc: authenticator not initialized"))}, header: other, unknown: true, others: true},
		"one rejects, one is down":     {again: reauthenticator{remote: says(false, utilerrors.NewAggregate([]error{errors.New("oidc: parse claims"), down}))}, header: other, unknown: true, others: true},
		"provider and webhook reject":  {again: reauthenticator{remote: says(false, utilerrors.NewAggregate([]error{errors.New("oidc: parse claims"), errors.New("token is revoked")}))}, header: other, others: true},
		"webhook beside a provider":    {again: reauthenticator{remote: says(false, utilerrors.NewAggregate([]error{errors.New("token is revoked")}))}, header: other, others: true},
		"one is down, one rejects":     {again: reauthenticator{remote: says(false, utilerrors.NewAggregate([]error{errors.New("oidc: authenticator not initialized"), errors.New("token is revoked")}))}, header: other, unknown: true, others: true},
		"certificate":                  {again: reauthenticator{trusted: []authenticator.Request{says(true, nil)}, remote: says(false, down)}, ok: true},
		"bad certificate":              {again: reauthenticator{trusted: []authenticator.Request{says(false, down)}, anonymous: says(true, nil)}},
		"bad certificate, valid token": {again: reauthenticator{trusted: []authenticator.Request{says(false, down)}, local: says(true, nil)}, header: other, ok: true},
		"anonymous":                    {again: reauthenticator{local: says(false, nil), remote: says(false, nil), anonymous: says(true, nil)}, ok: true},
	} {
		c.again.issuers = []string{"https://here"}
		_, ok, err := c.again.AuthenticateRequest(&http.Request{Header: c.header})
		if ok != c.ok || (err != nil) != c.unknown {
			t.Errorf("%s: accepted %v, error %v", name, ok, err)
		}
		_, ok, err = c.again.authenticateLocally(&http.Request{Header: c.header})
		switch {
		case c.others && !errors.Is(err, ErrRemote):
			t.Errorf("%s: local authenticator: accepted %v, error %v, want ErrRemote", name, ok, err)
		case !c.others && (ok != c.ok || (err != nil) != c.unknown || errors.Is(err, ErrRemote)):
			t.Errorf("%s: local authenticator: accepted %v, error %v, want no ErrRemote", name, ok, err)
		}
	}
}
