package http1

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/socket"
	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/proctest/testcert"
)

// serverVariable is the environment variable that makes the test binary run one of the servers.
const serverVariable = "LARDER_HTTP1_TEST_SERVER"

// The servers that are compared.
const (
	larderServer          = "own"
	fasthttpServer        = "fasthttp"
	leanFasthttpServer    = "fasthttp-lean" // holds no buffers while idle, and uses this package's connections
	netHTTPServer         = "nethttp"
	flushingNetHTTPServer = "nethttp-flush" // a watch keeps the goroutine of its handler
)

const (
	smallBytes = 1 << 10
	pieceBytes = 4800
	pieceCount = 4 << 20 / pieceBytes
	turns      = 3
	idleConns  = 2000 // open connections when memory is measured
	busyConns  = 8    // concurrent requests when CPU is measured
	restTime   = 2 * time.Second
)

// serverConfig configures a server.
type serverConfig struct {
	Server    string
	Cert, Key []byte // DER
}

// runServer serves until the process is killed.
func runServer(role string) error {
	var config serverConfig
	if err := json.Unmarshal([]byte(role), &config); err != nil {
		return err
	}
	key, err := x509.ParsePKCS8PrivateKey(config.Key)
	if err != nil {
		return err
	}
	secrets := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{config.Cert}, PrivateKey: key}}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Printf("serving at %s.\n", l.Addr())
	serve := newTestHandler().serve
	secrets = tlsConfig(secrets, false)
	switch config.Server {
	case larderServer:
		s := New(Config{Listener: l, TLS: secrets, Handler: serve, Draining: make(chan struct{}), Limits: Limits{MaxHeaderBytes: 1 << 20, MaxBodyBytes: 3 << 20, UserTimeout: 45 * time.Second}, BodyTimeout: time.Minute})
		return s.ServeNetwork()
	case fasthttpServer:
		return newFastServer(serve, false).Serve(tls.NewListener(l, secrets))
	case leanFasthttpServer:
		return newFastServer(serve, true).Serve(lateListener{l, secrets})
	default:
		return newStdServer(serve, config.Server == flushingNetHTTPServer).Serve(tls.NewListener(l, secrets))
	}
}

// testHandler is the handler of each of the servers.
type testHandler struct {
	small  []byte
	pieces pieces

	mu      sync.Mutex
	watches []net.Conn // guarded by mu
}

func newTestHandler() *testHandler {
	h := &testHandler{small: bytes.Repeat([]byte{'s'}, smallBytes), pieces: make(pieces, pieceCount)}
	for i := range h.pieces {
		h.pieces[i] = bytes.Repeat([]byte{byte('a' + i%26)}, pieceBytes)
	}
	return h
}

// serve responds to a request after the checks that package httpapi makes for every request.
func (h *testHandler) serve(c exchange.Carrier, received time.Time) *exchange.Exchange {
	x := new(exchange.Exchange)
	x.Init(c, received, nil)
	x.AuditID = "5f0e3a86-2f4d-4d6c-9f5c-0d8f6b1c2a37"
	if facts := c.Inspect(); facts.Code != 0 || facts.Impersonates || facts.OtherCredentials || len(c.Host()) == 0 ||
		string(c.Method()) != http.MethodGet || len(c.Peek("Authorization")) == 0 || len(c.Peek("Accept")) == 0 {
		x.Send(http.StatusBadRequest, "text/plain", []byte("not the request of this test"))
		return x
	}
	x.CommonHeaders()
	x.Set("X-Kubernetes-Pf-Flowschema-Uid", "7f4f1f0e-55a1-4f3e-8f1e-3f5b7d0f9a11")
	x.Set("X-Kubernetes-Pf-Prioritylevel-Uid", "0c8a6d5e-1d2b-4a77-b7a4-6a1d1a0b3c22")
	switch string(c.Target()) {
	case "/get":
		x.Send(http.StatusOK, "application/json", h.small)
	case "/list":
		x.SendFrom(http.StatusOK, "application/json", h.pieces.size(), h.pieces)
	case "/watch":
		x.Set("Content-Type", "application/json")
		h.watch(x)
	case "/settle":
		debug.FreeOSMemory()
		debug.FreeOSMemory() // sync.Pools release their memory only at the second collection
		x.Send(http.StatusOK, "text/plain", nil)
	default:
		x.Send(http.StatusNotFound, "text/plain", []byte("no such place"))
	}
	return x
}

// watch writes the head of a response and keeps its connection open.
func (h *testHandler) watch(x *exchange.Exchange) {
	to := x.StartStream(http.StatusOK, x.Header)
	if _, err := to.Conn.Write(to.Head); err != nil {
		to.Conn.Close()
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watches = append(h.watches, to.Conn)
}

// pieces is a body like the lists of package reads: shared items, each preceded by a few bytes.
type pieces [][]byte

func (p pieces) size() int { return len(p) * (pieceBytes + len(appendLength(nil, pieceBytes))) }

func appendLength(dst []byte, n int) []byte {
	return append(append(append(dst, `{"`...), strconv.Itoa(n)...), `":`...)
}

// WriteTo implements io.WriterTo.
func (p pieces) WriteTo(w io.Writer) (int64, error) {
	out := exchange.NewChunkWriter(w)
	defer out.Release()
	for _, piece := range p {
		out.Buf = appendLength(out.Buf, len(piece))
		out.Add(piece)
	}
	out.Flush()
	return out.Written, out.Err
}

// Close implements io.Closer.
func (p pieces) Close() error { return nil }

// serverProcess is a server in its own process.
type serverProcess struct {
	*proctest.Process
	addr   string
	config *tls.Config // of its clients
}

func startServer(t testing.TB, server string) *serverProcess {
	t.Helper()
	secrets, pool := testcert.Loopback(t)
	key, err := x509.MarshalPKCS8PrivateKey(secrets.Certificates[0].PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	config := serverConfig{Server: server, Cert: secrets.Certificates[0].Certificate[0], Key: key}
	p := proctest.New(t, server, proctest.Role(t, serverVariable, config))
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	var at []string
	p.Eventually(t, "serves", func() error {
		if at = regexp.MustCompile(`serving at (\S+)\.`).FindStringSubmatch(p.Output()); at == nil {
			return errors.New(p.Output())
		}
		return nil
	})
	return &serverProcess{Process: p, addr: at[1], config: &tls.Config{RootCAs: pool}}
}

// cpu returns the CPU time of the process so far.
func (s *serverProcess) cpu(t testing.TB) time.Duration {
	const ofProcess = 2 // MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED) of another process
	return proctest.CPUClock(^int32(s.PID())<<3 | ofProcess).Now(t)
}

// resident returns the anonymous memory of the process after a garbage collection.
func (s *serverProcess) resident(t testing.TB) int64 {
	t.Helper()
	v, err := s.connect()
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	if _, err := v.get("/settle"); err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.PID()))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`RssAnon:\s+(\d+) kB`).FindSubmatch(status)
	if m == nil {
		t.Fatalf("no RssAnon in %s", status)
	}
	kib, err := strconv.ParseInt(string(m[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// testClient is a client with one connection. It does as little as possible, because it shares the processors
// with the server.
type testClient struct {
	*tls.Conn
	in *bufio.Reader
}

func (s *serverProcess) connect() (*testClient, error) {
	c, err := tls.Dial("tcp", s.addr, s.config)
	if err != nil {
		return nil, err
	}
	if err := c.SetDeadline(time.Now().Add(10 * proctest.Patience)); err != nil {
		return nil, err
	}
	return &testClient{c, bufio.NewReaderSize(c, 4<<10)}, nil
}

// requestHeader is the rest of each request, with a token of the usual length.
var requestHeader = " HTTP/1.1\r\nHost: 127.0.0.1:6443\r\nUser-Agent: kube-controller/v1.36.3 (linux/amd64) kubernetes/0000000/leader-election\r\n" +
	"Accept: application/json, */*\r\nAuthorization: Bearer " + strings.Repeat("t", 900) + "\r\nAccept-Encoding: gzip\r\n\r\n"

// begin requests target and returns the header of the response.
func (t *testClient) begin(target string) (head []byte, err error) {
	if _, err := io.WriteString(t, "GET "+target+requestHeader); err != nil {
		return nil, err
	}
	for !bytes.HasSuffix(head, []byte("\r\n\r\n")) {
		line, err := t.in.ReadSlice('\n')
		if err != nil {
			return nil, err
		}
		head = append(head, line...)
	}
	if !bytes.HasPrefix(head, []byte("HTTP/1.1 200 OK\r\n")) {
		return nil, fmt.Errorf("got response %q", head)
	}
	return head, nil
}

// get requests target and returns the length of the response's body.
func (t *testClient) get(target string) (int, error) {
	head, err := t.begin(target)
	if err != nil {
		return 0, err
	}
	_, length, _ := bytes.Cut(head, []byte("\r\nContent-Length: "))
	length, _, _ = bytes.Cut(length, []byte("\r\n\r\n")[:2])
	n, err := strconv.Atoi(string(length))
	if err != nil {
		return 0, fmt.Errorf("%w in %q", err, head)
	}
	return t.in.Discard(n)
}

// silence returns nil if the server sends nothing for a while and keeps the connection open.
func (t *testClient) silence() error {
	if err := t.SetReadDeadline(time.Now().Add(restTime)); err != nil {
		return err
	}
	if b, err := t.in.ReadByte(); !socket.IsTimeout(err) {
		return fmt.Errorf("read %q and error %v from an idle connection, want a timeout", b, err)
	}
	return nil
}

// TestComparedServersServeTheSame checks that all servers of BenchmarkServers give the same responses to the same
// requests, one after the other on a connection.
func TestComparedServersServeTheSame(t *testing.T) {
	want := map[string]int{"/get": smallBytes, "/list": newTestHandler().pieces.size()}
	for _, server := range []string{larderServer, fasthttpServer, leanFasthttpServer, netHTTPServer, flushingNetHTTPServer} {
		d := startServer(t, server)
		v, err := d.connect()
		if err != nil {
			t.Fatal(err)
		}
		defer v.Close()
		for range 2 {
			for target, size := range want {
				if got, err := v.get(target); err != nil || got != size {
					t.Errorf("%s: got %d bytes of %s and error %v, want %d", server, got, target, err, size)
				}
			}
		}
		head, err := v.begin("/watch")
		if err != nil || !bytes.Contains(head, []byte("\r\nTransfer-Encoding: chunked\r\n")) || !bytes.Contains(head, []byte("\r\nAudit-Id: 5f0e")) {
			t.Errorf("%s: a watch has header %q, error %v; want chunks and an Audit-Id", server, head, err)
		}
	}
}

// BenchmarkServers compares this package with the servers of fasthttp and net/http, in turn. It reports the CPU and
// memory of the server.
func BenchmarkServers(b *testing.B) {
	servers := []string{larderServer, fasthttpServer, leanFasthttpServer, netHTTPServer}
	for _, row := range []struct{ name, target string }{{"D1-get", "/get"}, {"D2-list", "/list"}} {
		processes := make(map[string]*serverProcess)
		for _, server := range servers {
			processes[server] = startServer(b, server)
		}
		eachTurn(b, row.name, servers, func(b *testing.B, server string) { benchmarkBusy(b, processes[server], row.target) })
	}
	eachTurn(b, "D3-idle", servers, func(b *testing.B, server string) {
		benchmarkIdle(b, server, func(v *testClient) error { _, err := v.get("/get"); return err })
	})
	eachTurn(b, "D4-watch", append(servers, flushingNetHTTPServer), func(b *testing.B, server string) {
		benchmarkIdle(b, server, func(v *testClient) error { _, err := v.begin("/watch"); return err })
	})
}

// eachTurn runs all servers in each of several turns, each time in another order.
func eachTurn(b *testing.B, row string, servers []string, run func(b *testing.B, server string)) {
	for turn := range turns {
		for i := range servers {
			server := servers[(i+turn)%len(servers)]
			b.Run(fmt.Sprintf("row=%s/turn=%d/server=%s", row, turn+1, server), func(b *testing.B) { run(b, server) })
		}
	}
}

// benchmarkBusy requests target on a few connections concurrently.
func benchmarkBusy(b *testing.B, d *serverProcess, target string) {
	clients := make(chan *testClient, busyConns)
	for range busyConns {
		v, err := d.connect()
		if err != nil {
			b.Fatal(err)
		}
		defer v.Close()
		if _, err := v.get(target); err != nil {
			b.Fatal(err)
		}
		clients <- v
	}
	b.ResetTimer()
	before := d.cpu(b)
	var requests errgroup.Group
	for i := range busyConns {
		requests.Go(func() error {
			v := <-clients
			for range (b.N + i) / busyConns {
				if _, err := v.get(target); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := requests.Wait(); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(d.cpu(b)-before)/float64(b.N), "cpu-ns/op")
}

// benchmarkIdle opens many connections, calls begin on each and leaves them idle. An operation is the opening of one
// connection, including the TLS handshake.
func benchmarkIdle(b *testing.B, server string, begin func(*testClient) error) {
	d := startServer(b, server)
	defer d.Kill()
	empty := d.resident(b)
	before := d.cpu(b)
	clients := make([]*testClient, idleConns)
	var opened errgroup.Group
	opened.SetLimit(busyConns)
	for i := range clients {
		opened.Go(func() (err error) {
			if clients[i], err = d.connect(); err != nil {
				return err
			}
			return begin(clients[i])
		})
	}
	err := opened.Wait()
	defer func() {
		for _, v := range clients {
			if v != nil {
				v.NetConn().Close()
			}
		}
	}()
	if err != nil {
		b.Fatal(err)
	}
	opening := d.cpu(b) - before
	held := d.resident(b) - empty
	before = d.cpu(b)
	if err := clients[0].silence(); err != nil {
		b.Fatal(err)
	}
	resting := d.cpu(b) - before
	b.ReportMetric(float64(opening)/idleConns, "cpu-ns/op")
	b.ReportMetric(float64(held)/idleConns, "B/conn")
	b.ReportMetric(float64(resting)/idleConns/restTime.Seconds(), "cpu-ns/conn/s")
	b.ReportMetric(0, "ns/op")
}
