package revocation

import (
	"crypto/sha256"
	"crypto/tls"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/request"
	"github.com/larder-io/larder/internal/auth"
)

// What a user may lose, as the label of the metric.
const (
	lostCredential = "credential"
	lostPermission = "permission"
)

// credential is the one by which watches of one client were authenticated. It may contain secrets,
// and is kept for as long as one of these watches is open.
type credential struct {
	in           *Rights
	key          [sha256.Size]byte
	request      *http.Request // to authenticate once more; not changed
	impersonates bool
	ties         auth.Dependencies
	local        bool // this process authenticated it without a provider or webhook; the check has it

	// The rest is guarded by Rights.mu.
	rights     map[string]*right
	busy       bool // a check is queued or runs
	asking     bool // a provider or webhook is being asked
	asked      bool
	retry      time.Time // not to be asked about before
	generation uint64
	revisions  []int64 // of ties.Objects when it was last authenticated
	next       time.Time
	who        user.Info
}

// right is the right that watches of the same objects by one credential share. It implements
// streams.Right.
type right struct {
	of     *credential
	key    string
	single bool                   // a node watches one object: the node authorizer may change its mind
	lost   atomic.Pointer[string] // what was lost; nil if nothing was

	// The rest is guarded by Rights.mu.
	holders    int
	attributes request.Attributes
	asking     bool // the authorizer is being asked
	asked      bool
	retry      time.Time // not to be asked about before
	next       time.Time // to ask a webhook again
	all        uint64    // counters.all when the authorizer was asked
	losses     uint64    // of the node that the user is, when the authorizer was asked
}

func (held *right) Lost() bool { return held.lost.Load() != nil }

func (held *right) Ended() { held.of.in.ended.WithLabelValues(*held.lost.Load()).Inc() }

func (held *right) Leave() {
	r := held.of.in
	r.mu.Lock()
	defer r.mu.Unlock()
	if held.holders--; held.holders == 0 {
		r.dropLocked(held)
	}
}

// requestOf returns a request with nothing but the credentials of x and the fields by which it
// impersonates.
func (r *Rights) requestOf(x *exchange.Exchange) *http.Request {
	header := x.CopyHeaders(func(key string) bool {
		switch key {
		case "Sec-Websocket-Protocol", "Connection", "Upgrade": // the first holds a token only with the others
			return true
		}
		return r.config.Headers.Has(key) || strings.HasPrefix(key, "Impersonate-")
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

// keyOf returns a digest of req, which requestOf returned for x: of its credentials, of the user that
// it impersonates, and of its path if anonymous clients are accepted on some paths only.
func (r *Rights) keyOf(x *exchange.Exchange, req *http.Request) (key [sha256.Size]byte) {
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
	if r.config.AnonymousByPath {
		b = append(append(b, 0), x.Path...)
	}
	r.config.Digester.Digest(&key, b)
	return key
}
