package http1

import (
	"crypto/tls"
	goflag "flag"
	"io"
	"log"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/proctest/testcert"
)

// logOutput is the log, one piece for each write.
type logOutput struct {
	mu     sync.Mutex
	pieces []string // guarded by mu
}

func (o *logOutput) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pieces = append(o.pieces, string(p))
	return len(p), nil
}

// next waits for the n-th message about a handshake, counted from 0, and returns it without addresses.
func (o *logOutput) next(t *testing.T, n int) string {
	t.Helper()
	var found []string
	proctest.Eventually(t, "a line about a handshake", func() error {
		o.mu.Lock()
		defer o.mu.Unlock()
		found = found[:0]
		for _, piece := range o.pieces {
			if _, after, ok := strings.Cut(piece, "http: TLS handshake error "); ok {
				found = append(found, after)
			}
		}
		if len(found) <= n {
			return io.ErrNoProgress
		}
		return nil
	})
	return regexp.MustCompile(`127\.0\.0\.1:\d+`).ReplaceAllString(strings.TrimSpace(found[n]), "ADDRESS")
}

// logFrom has klog write lines of a verbosity to the output until the test ends.
func logFrom(t *testing.T, verbosity string) *logOutput {
	t.Helper()
	restore := klog.CaptureState()
	t.Cleanup(restore.Restore)
	all := goflag.NewFlagSet("klog", goflag.ContinueOnError)
	klog.InitFlags(all)
	for name, value := range map[string]string{"logtostderr": "false", "one_output": "true", "stderrthreshold": "FATAL", "v": verbosity} {
		if err := all.Set(name, value); err != nil {
			t.Fatal(err)
		}
	}
	out := new(logOutput)
	klog.SetOutput(out)
	return out
}

// failedHandshakes returns the value of upstream's metric.
func failedHandshakes(t *testing.T) float64 {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "apiserver_tls_handshake_errors_total" {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatal("there is no metric apiserver_tls_handshake_errors_total")
	return 0
}

// badClients fail the TLS handshake with a server, each in its way, and return the server's response.
var badClients = map[string]func(t *testing.T, c net.Conn) string{
	"HTTP without TLS":    sends("GET / HTTP/1.1\r\nHost: h\r\n\r\n"),
	"another protocol":    sends("SSH-2.0-OpenSSH_9.9\r\n"),
	"closes at once":      sends(""),
	"half a client hello": sends("\x16\x03\x01\x02\x00\x01\x00"),
	"unknown CA":          shakes(&tls.Config{ServerName: "127.0.0.1"}),
	"an old version":      shakes(&tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}),
	"other protocols":     shakes(&tls.Config{InsecureSkipVerify: true, NextProtos: []string{"spdy/3"}}),
	"other ciphers": shakes(&tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12,
		CipherSuites: []uint16{tls.TLS_RSA_WITH_RC4_128_SHA}}),
	"HTTP after a client hello": func(t *testing.T, c net.Conn) string {
		return shakes(&tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12})(t, &helloConn{Conn: c})
	},
}

// sends writes text, closes its side of the connection, and returns the response.
func sends(text string) func(*testing.T, net.Conn) string {
	return func(t *testing.T, c net.Conn) string {
		if _, err := io.WriteString(c, text); err != nil {
			t.Error(err)
		}
		if err := c.(*net.TCPConn).CloseWrite(); err != nil {
			t.Error(err)
		}
		response, err := io.ReadAll(c)
		if err != nil {
			t.Error(err)
		}
		return string(response)
	}
}

// shakes tries a TLS handshake with config, and returns its error.
func shakes(config *tls.Config) func(*testing.T, net.Conn) string {
	return func(t *testing.T, c net.Conn) string {
		err := tls.Client(c, config).Handshake()
		if err == nil {
			t.Error("the handshake succeeded")
			return ""
		}
		return err.Error()
	}
}

// helloConn sends the first write, and the beginning of an HTTP request in place of each other.
type helloConn struct {
	net.Conn
	sent bool
}

func (c *helloConn) Write(p []byte) (int, error) {
	if !c.sent {
		c.sent = true
		return c.Conn.Write(p)
	}
	_, err := io.WriteString(c.Conn, "GET /")
	return len(p), err
}

// TestFailedHandshakesMatchNetHTTP checks that a failed handshake is counted once, and that the log message and the
// response equal those of net/http. kube-apiserver counts the log messages of net/http.
func TestFailedHandshakesMatchNetHTTP(t *testing.T) {
	metrics.Register()
	out := logFrom(t, "5")
	ours := newTestServer(t, Config{HTTP2: true}, echo(nil))
	theirs, logged := netHTTP(t)
	n, before := 0, failedHandshakes(t)
	try := func(t *testing.T, addr string, client func(*testing.T, net.Conn) string) string {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(proctest.Patience)); err != nil {
			t.Fatal(err)
		}
		return client(t, c)
	}
	for name, client := range badClients {
		t.Run(name, func(t *testing.T) {
			got, want := try(t, ours.addr, client), try(t, theirs, client)
			if got != want {
				t.Errorf("the client got %q, from net/http %q", got, want)
			}
			if got, want := out.next(t, n), logged.next(t, n); got != want {
				t.Errorf("logged %q, by net/http %q", got, want)
			}
			n++
			if got := failedHandshakes(t) - before; got != float64(n) {
				t.Errorf("%v failed handshakes are counted, want %d", got, n)
			}
		})
	}
}

// TestFailedHandshakesAreLoggedAtVerbosity5 checks that below it a failed handshake is counted and not logged.
func TestFailedHandshakesAreLoggedAtVerbosity5(t *testing.T) {
	metrics.Register()
	quiet := logFrom(t, "4")
	t.Run("server", func(t *testing.T) { // the server logs nothing after it has ended
		ours, before := newTestServer(t, Config{HTTP2: true}, echo(nil)), failedHandshakes(t)
		c, err := net.Dial("tcp", ours.addr)
		if err != nil {
			t.Fatal(err)
		}
		sends("")(t, c)
		c.Close()
		proctest.Eventually(t, "the handshake is counted", func() error {
			if failedHandshakes(t) == before {
				return io.ErrNoProgress
			}
			return nil
		})
	})
	if len(quiet.pieces) != 0 {
		t.Errorf("logged %q, want nothing", quiet.pieces)
	}
}

// netHTTP serves with net/http until the test ends, and returns the address and the log.
func netHTTP(t *testing.T) (addr string, logged *logOutput) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	config, _ := testcert.Loopback(t)
	logged = new(logOutput)
	s := &http.Server{TLSConfig: config, ErrorLog: log.New(logged, "", 0), ReadHeaderTimeout: time.Minute}
	ended := make(chan error, 1)
	go func() { ended <- s.ServeTLS(l, "", "") }()
	t.Cleanup(func() {
		s.Close()
		<-ended
	})
	return l.Addr().String(), logged
}
