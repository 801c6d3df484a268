package nethttp

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/http1"
	"github.com/larder-io/larder/httpapi/streams"
	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/proctest/testcert"
)

// server serves requests by handlers.
type server struct {
	streams *streams.Streams
	addr    string
	client  *tls.Config
}

// jane is the user of all requests.
var jane = &user.DefaultInfo{Name: "jane"}

// serve serves requests by the handlers, by path, until the test ends.
func serve(t *testing.T, by map[string]http.HandlerFunc) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	authority := testcert.New(t, "server")
	cert := authority.Sign(t, "server", nil, func(c *x509.Certificate) {
		c.IPAddresses, c.ExtKeyUsage = []net.IP{net.IPv4(127, 0, 0, 1)}, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	})
	pool := x509.NewCertPool()
	pool.AddCert(authority.Cert)
	s := &server{streams: streams.New(), addr: l.Addr().String(), client: &tls.Config{RootCAs: pool}}
	h := New(Config{
		Streams: s.streams, Join: func(*exchange.Exchange) streams.Right { return nil },
		Credential: func(name string) bool { return name == "Authorization" },
	})
	base, cancel := context.WithCancel(context.Background())
	draining := make(chan struct{})
	listening := http1.New(http1.Config{
		Listener: l, TLS: &tls.Config{Certificates: []tls.Certificate{cert}},
		Handler: func(c exchange.Carrier, received time.Time) *exchange.Exchange {
			x := new(Call)
			h.Init(x, c, received, base)
			x.CommonHeaders()
			x.AuditID = "audit-id"
			if err := x.Parse(string(c.Method()), string(c.Target())); err != nil {
				t.Error(err)
			}
			if x.User = jane; !x.LongRunning() {
				asked, _ := time.ParseDuration(x.Query.Get("timeout"))
				x.Deadline = received.Add(cmp.Or(asked, time.Minute))
			}
			if path, ok := strings.CutPrefix(x.Path, "/forwarded"); ok {
				x.Forward(by[path])
			} else {
				x.Serve(by[x.Path])
			}
			return &x.Exchange
		},
		Draining: draining, Limits: http1.Limits{MaxHeaderBytes: 1 << 20, MaxBodyBytes: 1 << 20}, BodyTimeout: time.Minute,
	})
	ended := make(chan error, 1)
	go func() { ended <- listening.ServeNetwork() }()
	t.Cleanup(func() {
		close(draining)
		listening.StopAccepting()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		listening.Network.Close()
		s.streams.End()
		if err := listening.Network.Drain(context.Background()); err != nil {
			t.Error(err)
		}
		cancel()
		listening.Abort()
		s.streams.Abort()
		s.streams.Wait(context.Background())
		h.Wait()
	})
	return s
}

// send sends a request and returns the response, whose body the test closes.
func (s *server) send(t *testing.T, req *http.Request) *http.Response {
	t.Helper()
	tr := &http.Transport{TLSClientConfig: s.client, DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatalf("%s: %v", req.URL.Path, err)
	}
	return resp
}

func (s *server) dial(t *testing.T) *tls.Conn {
	t.Helper()
	return proctest.DialTLS(t, s.addr, s.client)
}

// read reads one response to its end.
func read(t *testing.T, in *bufio.Reader) *http.Response {
	t.Helper()
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	io.Copy(io.Discard, resp.Body)
	return resp
}
