package httpapi

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/http1"
)

// clustersPath begins the paths of the servers behind a [Front].
const clustersPath = "/clusters/"

// PathOf returns the path below which a Front serves the server of that name. Name "" is at the root.
func PathOf(name string) string {
	if name == "" {
		return ""
	}
	return clustersPath + name
}

// Front serves several servers on one listener, each below /clusters/{name}. The Front itself serves only /healthz,
// /livez and /readyz, and reads no credentials.
type Front struct {
	servers  map[string]*Server
	http1    *http1.Server
	draining chan struct{} // closed when Run's context has ended
}

// NewFront returns a Front for one or more servers, by name. All servers must have the same limits, which also apply
// to the Front.
func NewFront(listener net.Listener, config *tls.Config, servers map[string]*Server) *Front {
	f := &Front{servers: servers, draining: make(chan struct{})}
	var limits http1.Config
	for _, s := range servers {
		limits = s.http1Config()
	}
	limits.Listener, limits.TLS, limits.Handler, limits.Draining = listener, config, f.handle, f.draining
	f.http1 = http1.New(limits)
	return f
}

// Run serves until ctx ends, and then ends the servers' streams. The servers must run until Run returns.
func (f *Front) Run(ctx context.Context) error {
	accepted := make(chan error, 1)
	go func() { accepted <- f.http1.ServeNetwork() }()
	select {
	case err := <-accepted:
		return err
	case <-ctx.Done():
	}
	close(f.draining)
	f.http1.StopAccepting()
	err := <-accepted
	f.http1.Network.Close()
	for _, s := range f.servers {
		s.streams.End()
	}
	grace, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_ = f.http1.Network.Drain(grace) // longer requests are aborted
	f.http1.Abort()
	return err
}

// handle passes a request to the server at the start of its path.
func (f *Front) handle(carrier exchange.Carrier, received time.Time) *exchange.Exchange {
	target := string(carrier.Target())
	name, rest := splitTarget(target)
	if s := f.servers[name]; s != nil {
		return s.chain.handle(strippedRequest{carrier, []byte(rest)}, received)
	}
	x := new(exchange.Exchange)
	x.Init(carrier, received, nil)
	x.CommonHeaders()
	if _, ok := x.Inspect(); !ok {
		return x
	}
	switch path, _, _ := strings.Cut(target, "?"); {
	case path == "/healthz", path == "/livez", path == "/readyz":
		x.Text(http.StatusOK, "ok")
	default:
		err := apierrors.NewNotFound(schema.GroupResource{}, "")
		err.ErrStatus.Message = "there is no API server at this path; API servers are at " + clustersPath + "NAME"
		x.Fail(err)
	}
	return x
}

// splitTarget returns the name of the server in a request target, "" if there is none, and the rest of the target. It
// compares the prefix before the target is parsed, so escapes in it do not match.
func splitTarget(target string) (name, rest string) {
	rest, ok := strings.CutPrefix(target, clustersPath)
	if !ok {
		return "", target
	}
	end := strings.IndexAny(rest+"?", "/?")
	if name, rest = rest[:end], rest[end:]; !strings.HasPrefix(rest, "/") {
		rest = "/" + rest
	}
	return name, rest
}

// strippedRequest is a request without the prefix of its target.
type strippedRequest struct {
	exchange.Carrier
	target []byte
}

// Target implements exchange.Carrier.
func (s strippedRequest) Target() []byte { return s.target }
