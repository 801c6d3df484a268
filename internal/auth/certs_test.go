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

// bundle is a provider of CAs that a test replaces.
type bundle struct {
	dynamiccertificates.CAContentProvider
	content []byte
}

func (b *bundle) CurrentCABundleContent() []byte { return b.content }

func TestCertificatesAreVerifiedOnceInAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		verified, refuse := 0, false
		ca := &bundle{content: []byte("first")}
		c := &certificates{ca: ca, accepted: cache.NewLRUExpireCache(10), verify: authenticator.RequestFunc(
			func(*http.Request) (*authenticator.Response, bool, error) {
				verified++
				if refuse {
					return nil, false, errors.New("refused")
				}
				return &authenticator.Response{User: &user.DefaultInfo{Name: "bob"}}, true, nil
			})}
		ask := func(chain ...*x509.Certificate) bool {
			resp, ok, err := c.AuthenticateRequest(&http.Request{TLS: &tls.ConnectionState{PeerCertificates: chain}})
			if ok != (err == nil) || ok && resp.User.GetName() != "bob" {
				t.Fatalf("got %v, %v, %v", resp, ok, err)
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
		expect("first request", ask(cert), true, 1)
		refuse = true
		expect("second request", ask(cert), true, 1)
		expect("another certificate", ask(&x509.Certificate{NotAfter: cert.NotAfter}), false, 2)
		time.Sleep(certSuccessTTL + time.Second)
		expect("later", ask(cert), false, 3)
		expect("a refusal is not remembered", ask(cert), false, 4)
		refuse = false
		expect("accepted again", ask(cert), true, 5)
		refuse, ca.content = true, []byte("other")
		expect("other authorities", ask(cert), false, 6)
		refuse = false
		ending := &x509.Certificate{NotAfter: time.Now().Add(time.Second)}
		expect("certificate that ends soon", ask(ending), true, 7)
		time.Sleep(2 * time.Second)
		refuse = true
		expect("certificate that has ended", ask(ending), false, 8)
		refuse = false
		chain := []*x509.Certificate{{NotAfter: time.Now().Add(time.Hour)}, {NotAfter: time.Now().Add(time.Second)}}
		expect("intermediate certificate that ends soon", ask(chain...), true, 9)
		time.Sleep(2 * time.Second)
		refuse = true
		expect("intermediate certificate that has ended", ask(chain...), false, 10)
	})
}

// TestAcceptedCertificatesAreFreed checks that a certificate, and all else that its client has sent with it, can be
// freed when its connection has ended.
func TestAcceptedCertificatesAreFreed(t *testing.T) {
	c := &certificates{ca: &bundle{content: []byte("authorities")}, accepted: cache.NewLRUExpireCache(10), verify: authenticator.RequestFunc(
		func(*http.Request) (*authenticator.Response, bool, error) {
			return &authenticator.Response{User: &user.DefaultInfo{Name: "bob"}}, true, nil
		})}
	cert := &x509.Certificate{NotAfter: time.Now().Add(time.Hour)}
	if _, ok, err := c.AuthenticateRequest(&http.Request{TLS: &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}}); !ok || len(c.accepted.Keys()) != 1 {
		t.Fatalf("accepted %v, %v, and remembered %v", ok, err, c.accepted.Keys())
	}
	left := weak.Make(cert)
	runtime.GC()
	if left.Value() != nil {
		t.Error("the certificate is still in memory")
	}
	runtime.KeepAlive(c)
}
