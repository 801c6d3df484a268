package relay

import (
	"crypto/tls"
	"encoding/base64"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"
	"pgregory.net/rapid"

	"github.com/larder-io/larder/internal/proctest/testcert"
)

// TestCredentials sends requests of all kinds of clients, for all kinds of credentials of the relay. A client's own
// credential goes through unchanged; the relay's goes with the impersonation of the client's user alone.
func TestCredentials(t *testing.T) {
	protocol := tokenProtocol + base64.RawURLEncoding.EncodeToString([]byte(annsToken))
	forged := http.Header{
		"Impersonate-User": {"eve"}, "impersonate-GROUP": {"a", "b"}, "Impersonate-Extra-a%2Fb": {"c"}, "Impersonate-Uid": {"7"},
		"X-Remote-User": {"root"}, "x-remote-extra-y": {"z"}, "Connection": {"Impersonate-User, x-hop"}, "X-Hop": {"1"},
	}
	with := func(more ...http.Header) http.Header {
		all := make(http.Header)
		for _, header := range more {
			for name, values := range header {
				all[name] = values
			}
		}
		return all
	}
	bearer := http.Header{"Authorization": {"bearer " + annsToken}}
	websocket := http.Header{"Sec-Websocket-Protocol": {"v5.channel.k8s.io, " + protocol}}
	for name, c := range map[string]struct {
		cert   string // the user of the certificate; "" means no certificate, "?" one of an unknown CA
		header http.Header
		as     string // the user that the relay impersonates; "" if it does not use its own credential
		code   int
	}{
		"anonymous":                     {code: 200},
		"anonymous, impersonates":       {header: forged, code: 200},
		"basic":                         {header: http.Header{"Authorization": {"Basic YTpi"}}, code: 200},
		"token":                         {header: bearer, code: 200},
		"token, impersonates":           {header: with(bearer, forged), code: 200},
		"token of a websocket":          {header: websocket, code: 200},
		"token, named in Connection":    {header: with(bearer, http.Header{"Connection": {"authorization"}}), code: 200},
		"bad token":                     {header: http.Header{"Authorization": {"Bearer bad"}}, code: 401},
		"certificate":                   {cert: "bob", as: "bob", code: 200},
		"certificate, impersonates":     {cert: "bob", header: forged, as: "eve", code: 200},
		"certificate and token":         {cert: "bob", header: bearer, as: "bob", code: 200},
		"certificate, all":              {cert: "bob", header: with(bearer, websocket, forged), as: "eve", code: 200},
		"certificate and basic":         {cert: "bob", header: http.Header{"Authorization": {"Basic YTpi"}}, as: "bob", code: 200},
		"certificate and bad token":     {cert: "bob", header: http.Header{"Authorization": {"Bearer bad"}}, as: "bob", code: 200},
		"bad certificate":               {cert: "?", code: 401},
		"bad certificate, impersonates": {cert: "?", header: forged, code: 401},
		"bad certificate and token":     {cert: "?", header: with(bearer, forged), code: 200},
		"user that HTTP would rename":   {cert: "root ", code: 403},
		"user with a line break":        {cert: "x\r\nImpersonate-Group: system:masters", code: 403},
	} {
		for credential, change := range map[string]func(*testing.T, *upstream, *rest.Config){
			"token":       func(*testing.T, *upstream, *rest.Config) {},
			"certificate": relaysCertificate,
			"password": func(_ *testing.T, _ *upstream, c *rest.Config) {
				c.BearerToken, c.Username, c.Password = "", "relay", "p"
			},
		} {
			t.Run(name+"/"+credential, func(t *testing.T) {
				u := newUpstream(t, nil)
				config := u.config()
				change(t, u, config)
				s := serve(t, config)
				client := s.tlsFor(t, strings.Trim(c.cert, "?"), "dev")
				if c.cert == "?" {
					client = s.tlsOfUnknownCA(t)
				}
				for _, h2 := range []bool{false, true} {
					s.checkCredential(t, u, client, h2, c.header, c.as, c.code)
				}
			})
		}
	}
}

// relaysCertificate makes a certificate the credential of the relay.
func relaysCertificate(t *testing.T, u *upstream, config *rest.Config) {
	config.BearerToken = ""
	config.CertFile, config.KeyFile = testcert.Write(t, t.TempDir(), "relay", u.authority.Sign(t, "relay", nil, nil))
}

// checkCredential sends a request and compares the credentials that reach the upstream.
func (s *server) checkCredential(t *testing.T, u *upstream, client *tls.Config, h2 bool, sent http.Header, as string, code int) {
	t.Helper()
	req, _ := http.NewRequest(http.MethodGet, "https://"+s.addr+"/api/v1/pods?a=b", nil)
	if req.Header = sent.Clone(); sent == nil {
		req.Header = make(http.Header)
	}
	if h2 {
		req.Header.Del("Connection") // HTTP/2 has none
	}
	resp := send(t, newTransport(t, client, h2), req)
	resp.Body.Close()
	if resp.StatusCode != code {
		t.Fatalf("got status %d, want %d", resp.StatusCode, code)
	}
	if code != http.StatusOK {
		if len(u.received) > 0 {
			t.Fatal("a refused request reached the upstream")
		}
		return
	}
	got := <-u.received
	own := got.header.Get("Authorization") == "Bearer "+relaysToken || got.certificate != "" || strings.HasPrefix(got.header.Get("Authorization"), "Basic cmVsYXk6c")
	if own != (as != "") {
		t.Fatalf("the relay's credential was used: %t, want %t\n%v", own, as != "", got.header)
	}
	if !h2 && got.header.Get("X-Hop") != "" || got.header.Get("X-Remote-User") != "" || got.header.Get("X-Remote-Extra-Y") != "" {
		t.Errorf("fields that must not go through: %v", got.header)
	}
	if as == "" {
		for _, name := range []string{"Authorization", "Sec-Websocket-Protocol", "Impersonate-User", "Impersonate-Group", "Impersonate-Uid", "Impersonate-Extra-A%2fb"} {
			if want := canonical(sent)[name]; !slices.Equal(got.header[name], want) {
				t.Errorf("%s: %q, want %q", name, got.header[name], want)
			}
		}
		return
	}
	groups := []string{"dev", user.AllAuthenticated}
	if as == "eve" {
		groups = []string{"a", "b", user.AllAuthenticated}
	}
	if !slices.Equal(got.header["Impersonate-User"], []string{as}) || !slices.Equal(slices.Sorted(slices.Values(got.header["Impersonate-Group"])), groups) {
		t.Errorf("impersonates %q of %q, want %q of %q", got.header["Impersonate-User"], got.header["Impersonate-Group"], as, groups)
	}
	if strings.Contains(strings.Join(got.header["Sec-Websocket-Protocol"], ","), tokenProtocol) || got.header["Sec-Websocket-Protocol"] != nil != (sent["Sec-Websocket-Protocol"] != nil) {
		t.Errorf("subprotocols %q", got.header["Sec-Websocket-Protocol"])
	}
}

// canonical returns header with canonical names.
func canonical(header http.Header) http.Header {
	out := make(http.Header)
	for name, values := range header {
		for _, value := range values {
			out.Add(name, value)
		}
	}
	return out
}

// capture is a transport that keeps the request.
type capture struct{ req *http.Request }

func (c *capture) RoundTrip(req *http.Request) (*http.Response, error) {
	c.req = req
	return &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody}, nil
}

// TestNoHeaderReplacesTheImpersonation checks that whatever headers a client with a certificate sends, the upstream
// reads its user from the impersonation, and sees only the relay's credential.
func TestNoHeaderReplacesTheImpersonation(t *testing.T) {
	names := rapid.OneOf(rapid.SampledFrom([]string{
		"Impersonate-User", "impersonate-user", "IMPERSONATE-GROUP", "Impersonate-Uid", "Impersonate-Extra-A%2fb", "impersonate-extra-", "Impersonate-",
		"Authorization", "aUTHORIZATION", "X-Remote-User", "x-remote-group", "X-Remote-Extra-a", "Sec-Websocket-Protocol", "Connection", "connection",
		"Upgrade", "Te", "Proxy-Authorization", "Transfer-Encoding", "Trailer", "Host", "Content-Length", "Cookie", "X-Forwarded-For", "Accept",
	}), rapid.StringMatching(`[!#$%&'*+.^_|~0-9A-Za-z-]{1,20}`))
	values := rapid.OneOf(rapid.SampledFrom([]string{
		"root", "", "Impersonate-User", "impersonate-user, impersonate-group, authorization", "Bearer x", "trailers", "upgrade", "websocket", "a, " + tokenProtocol + "eA",
	}), rapid.StringMatching(`[ -~]{0,20}`))
	rapid.Check(t, func(t *rapid.T) {
		sent := make(http.Header)
		for range rapid.IntRange(0, 8).Draw(t, "fields") {
			name := http.CanonicalHeaderKey(rapid.Custom(func(t *rapid.T) string { return names.Draw(t, "name") }).Draw(t, "field"))
			sent[name] = append(sent[name], values.Draw(t, "value"))
		}
		token := rapid.StringMatching(`[a-z][a-zA-Z0-9:/%.-]{0,10}`)
		u := &user.DefaultInfo{Name: token.Draw(t, "user"), Groups: rapid.SliceOfN(token, 0, 3).Draw(t, "groups"), Extra: map[string][]string{"k/e y": {"v"}}}
		last := &capture{}
		f := &forwarding{upstream: &url.URL{Scheme: "https", Host: "upstream"}, header: endToEnd(sent), via: impersonate(u, impersonatedOnly{last})}
		req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		req.Header = sent
		f.ServeHTTP(httptest.NewRecorder(), req)
		if last.req == nil {
			return // not sent
		}
		got := last.req.Header
		if users := got["Impersonate-User"]; len(users) != 1 || users[0] != u.Name || !slices.Equal(got["Impersonate-Group"], u.Groups) && len(u.Groups) > 0 {
			t.Fatalf("impersonates %q of %q", users, got["Impersonate-Group"])
		}
		want := map[string]bool{"Impersonate-User": true, "Impersonate-Group": len(u.Groups) > 0, "Impersonate-Extra-K%2fe%20y": true}
		for name, values := range got {
			if namesUser(name) && !want[name] || strings.Contains(strings.ToLower(strings.Join(values, ",")), tokenProtocol) && strings.EqualFold(name, "Sec-Websocket-Protocol") {
				t.Errorf("%s: %q goes through", name, values)
			}
		}
	})
}

// TestRelaysCredentialNeedsAUser checks that a transport with the relay's credential sends no request without
// impersonation.
func TestRelaysCredentialNeedsAUser(t *testing.T) {
	for name, header := range map[string]http.Header{
		"none":             {},
		"empty":            {"Impersonate-User": {""}},
		"two":              {"Impersonate-User": {"a", "b"}},
		"groups alone":     {"Impersonate-Group": {"a"}},
		"lower case":       {"impersonate-user": {"a"}},
		"beside it":        {"Impersonate-User": {"a"}, "impersonate-group": {"root"}},
		"credential":       {"Impersonate-User": {"a"}, "Authorization": {"Bearer x"}},
		"front proxy":      {"Impersonate-User": {"a"}, "X-Remote-User": {"root"}},
		"renamed group":    {"Impersonate-User": {"a"}, "Impersonate-Group": {"\tsystem:masters"}},
		"more than a line": {"Impersonate-User": {"a"}, "Impersonate-Uid": {"1\nX: y"}},
	} {
		last := &capture{}
		req := httptest.NewRequest(http.MethodGet, "/", nil)
		req.Header = header
		if _, err := (impersonatedOnly{last}).RoundTrip(req); !errors.Is(err, errIdentity) || last.req != nil {
			t.Errorf("%s: %v, sent %v", name, err, last.req != nil)
		}
	}
	for _, u := range []user.Info{&user.DefaultInfo{}, &user.DefaultInfo{Groups: []string{"a"}}} {
		last := &capture{}
		if _, err := impersonate(u, impersonatedOnly{last}).RoundTrip(httptest.NewRequest(http.MethodGet, "/", nil)); err == nil || last.req != nil {
			t.Errorf("%v is sent: %v", u, err)
		}
	}
}
