package identity

import (
	"crypto/sha256"
	"iter"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"

	"github.com/larder-io/larder/httpapi/exchange"
)

// line is a request whose header has one field.
type line struct {
	exchange.Carrier
	name string
}

func (l line) Lines() iter.Seq2[[]byte, []byte] {
	return func(yield func([]byte, []byte) bool) { yield([]byte(l.name), nil) }
}

// TestHeaders checks that the fields that name a user are known, however a front proxy was configured.
func TestHeaders(t *testing.T) {
	usual := NewHeaders(nil)
	own := NewHeaders(&authenticatorfactory.RequestHeaderConfig{
		UsernameHeaders: headerrequest.StaticStringSlice{"x-who"}, UIDHeaders: headerrequest.StaticStringSlice{},
		GroupHeaders: headerrequest.StaticStringSlice{"X-Remote-Group"}, ExtraHeaderPrefixes: headerrequest.StaticStringSlice{"x-who-extra-"},
	})
	for name, want := range map[string]struct{ usual, own, unusual bool }{
		"Authorization":        {true, true, false},
		"X-Remote-Group":       {true, true, true},
		"X-Remote-Extra-Scope": {true, true, true},
		"X-Who":                {false, true, true},
		"X-Who-Extra-Scope":    {false, true, true},
		"Accept":               {false, false, false},
	} {
		lines := line{name: strings.ToLower(name)}
		if usual.Has(name) != want.usual || own.Has(name) != want.own || own.HasProxyFields(lines) != want.unusual || usual.HasProxyFields(lines) {
			t.Errorf("%s: usual %v, own %v, unusual %v %v", name, usual.Has(name), own.Has(name), usual.HasProxyFields(lines), own.HasProxyFields(lines))
		}
	}
}

// TestDigests checks that different secrets and different processes have different digests, and that no secret has
// the digest zero.
func TestDigests(t *testing.T) {
	d, other := NewDigester(), NewDigester()
	of := func(d *Digester, secret string) [sha256.Size]byte { return d.Digest([]byte(secret)) }
	first, second := of(d, "a"), of(d, "a")
	if first != second || first == of(d, "b") || first == of(other, "a") || of(d, "") != [sha256.Size]byte{} {
		t.Error("digests do not tell secrets apart")
	}
}

// TestRefusedImpersonation checks that a refused impersonation gets a response and returns no request.
func TestRefusedImpersonation(t *testing.T) {
	req, w := httptest.NewRequest(http.MethodGet, "/", nil), httptest.NewRecorder()
	req.Header.Set("Impersonate-Group", "a") // of no user
	if passed, _ := NewImpersonation(nil).Admit(w, req); passed != nil || w.Code < 400 {
		t.Errorf("Admit returns %v, status %d; want nil and an error", passed, w.Code)
	}
}

// BenchmarkRemembered measures the authentication of a connection's known token.
func BenchmarkRemembered(b *testing.B) {
	d, token := NewDigester(), []byte("Bearer "+strings.Repeat("t", 900))
	b.ReportAllocs()
	for b.Loop() {
		d.Digest(token)
	}
}
