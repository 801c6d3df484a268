package revocation

import (
	"crypto/sha256"
	"crypto/tls"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/identity"
)

// credentialReader reads the credentials of requests.
type credentialReader struct {
	headers  *identity.Headers
	digester *identity.Digester
	byPath   bool // anonymous clients are accepted on some paths only
}

// request returns a request with nothing but the credentials of x and the fields by which it
// impersonates.
func (s *credentialReader) request(x *exchange.Exchange) *http.Request {
	header := x.CopyHeaders(func(key string) bool {
		switch key {
		case "Sec-Websocket-Protocol", "Connection", "Upgrade": // the first holds a token only with the others
			return true
		}
		return s.headers.Has(key) || strings.HasPrefix(key, "Impersonate-")
	})
	req := &http.Request{
		Method: http.MethodGet, URL: &url.URL{Path: x.Path}, Header: header, Body: http.NoBody,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, RemoteAddr: x.Carrier.RemoteAddr().String(),
	}
	if state := x.Carrier.TLS(); state != nil { // its other fields would keep the connection alive
		req.TLS = &tls.ConnectionState{Version: state.Version, HandshakeComplete: true, PeerCertificates: state.PeerCertificates}
	}
	return req
}

// key returns a digest of req, which request returned for x: of its credentials, of the user that it
// impersonates, and of its path if anonymous clients are accepted on some paths only.
func (s *credentialReader) key(x *exchange.Exchange, req *http.Request) (key [sha256.Size]byte) {
	var b []byte
	for _, name := range slices.Sorted(maps.Keys(req.Header)) {
		b = append(append(b, name...), 0)
		for _, value := range req.Header[name] {
			b = append(append(b, value...), 0)
		}
	}
	if req.TLS != nil && len(req.TLS.PeerCertificates) > 0 {
		b = append(b, req.TLS.PeerCertificates[0].Raw...)
	}
	if s.byPath {
		b = append(append(b, 0), x.Path...)
	}
	s.digester.Digest(&key, b)
	return key
}
