package auth

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

// bundle is a CA bundle that a test replaces.
type bundle struct {
	dynamiccertificates.CAContentProvider
	content []byte
}

func (b *bundle) CurrentCABundleContent() []byte { return b.content }

// TestVerifiedCertificatesAreCached checks that an accepted certificate is verified again after a while, after its
// expiry, and after a change of the CAs.
func TestVerifiedCertificatesAreCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		verified, reject := 0, false
		ca := &bundle{content: []byte("first")}
		c := &certificates{ca: ca, accepted: cache.NewLRUExpireCache(10), verify: authenticator.RequestFunc(
			func(*http.Request) (*authenticator.Response, bool, error) {
				verified++
				if reject {
					return nil, false, errors.New("rejected")
				}
				return &authenticator.Response{User: &user.DefaultInfo{Name: "bob"}}, true, nil
			})}
		authenticate := func(chain ...*x509.Certificate) bool {
			resp, ok, err := c.AuthenticateRequest(&http.Request{TLS: &tls.ConnectionState{PeerCertificates: chain}})
			if ok != (err == nil) || ok && resp.User.GetName() != "bob" {
				t.Fatalf("response %v, ok %v, error %v", resp, ok, err)
			}
			return ok
		}
		expect := func(what string, ok bool, accepted bool, calls int) {
			t.Helper()
			if ok != accepted || verified != calls {
				t.Errorf("%s: accepted %v after %d verifications, want %v after %d", what, ok, verified, accepted, calls)
			}
		}
		cert := &x509.Certificate{NotAfter: time.Now().Add(time.Hour)}
		expect("first request", authenticate(cert), true, 1)
		reject = true
		expect("second request", authenticate(cert), true, 1)
		expect("another certificate", authenticate(&x509.Certificate{NotAfter: cert.NotAfter}), false, 2)
		time.Sleep(certSuccessTTL + time.Second)
		expect("later", authenticate(cert), false, 3)
		expect("a rejection is not cached", authenticate(cert), false, 4)
		reject = false
		expect("accepted again", authenticate(cert), true, 5)
		reject, ca.content = true, []byte("other CA")
		expect("other CAs", authenticate(cert), false, 6)
		reject = false
		ending := &x509.Certificate{NotAfter: time.Now().Add(time.Second)}
		expect("certificate that expires soon", authenticate(ending), true, 7)
		time.Sleep(2 * time.Second)
		reject = true
		expect("expired certificate", authenticate(ending), false, 8)
		reject = false
		chain := []*x509.Certificate{{NotAfter: time.Now().Add(time.Hour)}, {NotAfter: time.Now().Add(time.Second)}}
		expect("intermediate certificate that expires soon", authenticate(chain...), true, 9)
		time.Sleep(2 * time.Second)
		reject = true
		expect("expired intermediate certificate", authenticate(chain...), false, 10)
	})
}

// TestAcceptedCertificatesAreFreed checks that a certificate, and everything else that its client has sent, can be
// freed after its connection has ended.
func TestAcceptedCertificatesAreFreed(t *testing.T) {
	c := &certificates{ca: &bundle{content: []byte("authorities")}, accepted: cache.NewLRUExpireCache(10), verify: authenticator.RequestFunc(
		func(*http.Request) (*authenticator.Response, bool, error) {
			return &authenticator.Response{User: &user.DefaultInfo{Name: "bob"}}, true, nil
		})}
	cert := &x509.Certificate{NotAfter: time.Now().Add(time.Hour)}
	if _, ok, err := c.AuthenticateRequest(&http.Request{TLS: &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}}); !ok || len(c.accepted.Keys()) != 1 {
		t.Fatalf("accepted %v, error %v, cached %v", ok, err, c.accepted.Keys())
	}
	left := weak.Make(cert)
	runtime.GC()
	if left.Value() != nil {
		t.Error("the cache keeps the certificate in memory")
	}
	runtime.KeepAlive(c)
}
