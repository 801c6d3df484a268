package auth

import (
	"crypto/x509"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

const (
	// certSuccessTTL is how long an accepted client certificate is cached.
	certSuccessTTL = 9 * time.Second
	// certsRemembered limits the entries of the cache; a connection uses one.
	certsRemembered = 16 << 10
)

// certificates authenticates by client certificate and caches the users that it accepts:
// verifying a chain costs more than the rest of a GET. A connection keeps its parsed
// certificate, so that the certificate's address identifies it.
//
// No entry outlives the certificate or a change of the CAs. Refusals are not cached.
type certificates struct {
	verify   authenticator.Request
	ca       dynamiccertificates.CAContentProvider
	accepted *cache.LRUExpireCache
}

// certificateKey is an accepted certificate and the CA bundle, which its provider replaces as a whole.
type certificateKey struct {
	leaf   *x509.Certificate
	bundle *byte
}

func newCertificates(ca dynamiccertificates.CAContentProvider) authenticator.Request {
	return &certificates{
		verify:   group.NewAuthenticatedGroupAdder(x509request.NewDynamic(ca.VerifyOptions, x509request.CommonNameUserConversion)),
		ca:       ca,
		accepted: cache.NewLRUExpireCache(certsRemembered),
	}
}

// AuthenticateRequest implements authenticator.Request. The response is shared and
// must not be changed.
func (c *certificates) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	bundle := c.ca.CurrentCABundleContent()
	if req.TLS == nil || len(req.TLS.PeerCertificates) == 0 || len(bundle) == 0 {
		return c.verify.AuthenticateRequest(req)
	}
	leaf := req.TLS.PeerCertificates[0]
	key := certificateKey{leaf, &bundle[0]}
	if resp, ok := c.accepted.Get(key); ok {
		return resp.(*authenticator.Response), true, nil
	}
	resp, ok, err := c.verify.AuthenticateRequest(req)
	if err == nil && ok {
		c.accepted.Add(key, resp, min(certSuccessTTL, time.Until(leaf.NotAfter)))
	}
	return resp, ok, err
}
