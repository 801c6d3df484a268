package e2e_test

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/larder-io/larder/internal/proctest"
)

var stockBinary = flag.String("stock", "", "kube-apiserver, to restart instead of Larder, to compare with, and for handovers")

// TestRollingRestart restarts two servers in turn behind a load balancer that avoids servers that are not ready. No
// request may fail: of a writer, a reader, an informer, or a client that opens a new connection for each request.
func TestRollingRestart(t *testing.T) {
	t.Parallel() // mostly waits
	w := newRolling(t)
	load := w.start(t)
	for _, p := range w.replicas {
		load.proceed(t, 50)
		p.signal(syscall.SIGTERM)
		if err := p.Wait(t); err != nil && *stockBinary == "" {
			t.Errorf("exit: %v\n%s", err, p.Output())
		}
		load.proceed(t, 50)
		p.start()
		w.balancer.awaitReady(t, p.port)
	}
	load.proceed(t, 50)
	load.stop()
	for kind := range load.counts {
		c := &load.counts[kind]
		t.Logf("%-12s %6d requests, %d failed", loads[kind], c.done.Load(), len(c.failed))
		for _, err := range c.failed {
			t.Errorf("%s: %v", loads[kind], err)
		}
	}
	load.checkInformer(t)
}

// rolling is two servers with one etcd behind a load balancer.
type rolling struct {
	replicas []*process
	balancer *balancer
	config   *rest.Config
}

func newRolling(t *testing.T) *rolling {
	t.Helper()
	url, keys := serveEtcd(t), newProcess(t, "--unsafe-no-fsync")
	keys.start() // creates the keys with which both sign
	keys.awaitReady()
	if err := keys.Terminate(t); err != nil {
		t.Fatal(err)
	}
	binary := *stockBinary
	if binary == "" {
		binary = filepath.Join(t.TempDir(), "kube-apiserver")
		if err := os.Symlink(binaries.larder, binary); err != nil {
			t.Fatal(err)
		}
	}
	w, file := &rolling{}, tokens(t)
	for _, port := range proctest.Ports(t, 2) {
		p := &process{t: t, dir: keys.dir, port: port}
		p.Process = proctest.New(t, "a replica", func() *exec.Cmd {
			return exec.Command(binary, "--etcd-servers", url, "--secure-port", strconv.Itoa(port), "--bind-address=127.0.0.1",
				"--cert-dir", filepath.Join(keys.dir, "pki"), "--service-account-issuer=https://kubernetes.default.svc", "--token-auth-file", file,
				"--service-account-signing-key-file", filepath.Join(keys.dir, "pki", "sa.key"), "--service-account-key-file", filepath.Join(keys.dir, "pki", "sa.key"),
				"--authorization-mode=RBAC", "--shutdown-delay-duration=10s", "--service-cluster-ip-range=10.0.0.0/24", "--endpoint-reconciler-type=none",
				"--etcd-healthcheck-timeout=1m", "--etcd-readycheck-timeout=1m") // the running replica is ready even with a slow etcd
		})
		p.start()
		w.replicas = append(w.replicas, p)
	}
	w.balancer = newBalancer(t, w.replicas[0].port, w.replicas[1].port)
	for _, p := range w.replicas {
		w.balancer.awaitReady(t, p.port)
	}
	w.config = &rest.Config{
		Host: "https://" + w.balancer.Addr().String(), BearerToken: "root-token", QPS: 50, Burst: 50, // limits each client, so that the balancer notices stopping servers in time
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}, Timeout: proctest.Patience,
	}
	return w
}

// balancer is a TCP load balancer: it assigns each new connection to one of the ready servers, in turn. Open
// connections stay with their server.
type balancer struct {
	net.Listener
	ports   []int
	probe   *http.Client
	running sync.WaitGroup

	mu    sync.Mutex
	ready map[int]bool          // guarded by mu
	next  int                   // guarded by mu
	open  map[net.Conn]struct{} // guarded by mu
}

func newBalancer(t *testing.T, ports ...int) *balancer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &balancer{Listener: l, ports: ports, ready: make(map[int]bool), open: make(map[net.Conn]struct{})}
	// A slow probe on a busy machine does not count against a server: if no server were ready, connections would go to any.
	b.probe = &http.Client{Timeout: proctest.Patience, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	ctx, cancel := context.WithCancel(context.Background())
	b.running.Go(b.accept)
	for _, port := range ports {
		b.running.Go(func() { b.follow(ctx, port) })
	}
	t.Cleanup(func() {
		cancel()
		l.Close()
		b.mu.Lock()
		for c := range b.open {
			c.Close()
		}
		b.mu.Unlock()
		b.running.Wait()
	})
	return b
}

// follow probes ten times a second whether a server is ready.
func (b *balancer) follow(ctx context.Context, port int) {
	for ctx.Err() == nil {
		ok := b.isReady(ctx, port)
		b.mu.Lock()
		b.ready[port] = ok
		b.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// isReady reports whether a server is ready.
func (b *balancer) isReady(ctx context.Context, port int) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d/readyz", port), nil)
	if err != nil {
		return false
	}
	resp, err := b.probe.Do(req)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

func (b *balancer) awaitReady(t *testing.T, port int) {
	t.Helper()
	proctest.Eventually(t, "the balancer sees that the server is ready", func() error {
		b.mu.Lock()
		defer b.mu.Unlock()
		if !b.ready[port] {
			return errors.New("it does not")
		}
		return nil
	})
}

// choose returns the next ready server, or any.
func (b *balancer) choose() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	for range b.ports {
		b.next++
		if port := b.ports[b.next%len(b.ports)]; b.ready[port] {
			return port
		}
	}
	return b.ports[0]
}

func (b *balancer) accept() {
	for {
		c, err := b.Accept()
		if err != nil {
			return
		}
		b.running.Go(func() { b.carry(c) })
	}
}

// carry copies both ways until both sides are closed.
func (b *balancer) carry(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", b.choose()))
	if err != nil {
		return
	}
	defer server.Close()
	b.mu.Lock()
	b.open[client], b.open[server] = struct{}{}, struct{}{}
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.open, client)
		delete(b.open, server)
	}()
	var both sync.WaitGroup
	copyTo := func(to, from net.Conn) {
		_, _ = io.Copy(to, from)
		_ = to.(*net.TCPConn).CloseWrite()
	}
	both.Go(func() { copyTo(server, client) })
	both.Go(func() { copyTo(client, server) })
	both.Wait()
}

// loads are the names of the kinds of clients.
var loads = [...]string{"writes", "reads", "connections"}

type load struct {
	counts  [len(loads)]count
	cancel  context.CancelFunc
	running sync.WaitGroup

	client   kubernetes.Interface
	informer informers.SharedInformerFactory
	halt     chan struct{}
}

// count counts the requests of one kind of client.
type count struct {
	done atomic.Int64

	mu     sync.Mutex
	failed []error // guarded by mu
}

// start starts the load: four clients of each kind, and an informer.
func (r *rolling) start(t *testing.T) *load {
	t.Helper()
	const clients = 4
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{cancel: cancel, client: kubernetes.NewForConfigOrDie(r.config), halt: make(chan struct{})}
	begin := func(kind int, each func(ctx context.Context, i int) error) {
		l.running.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				err := each(ctx, i)
				if ctx.Err() != nil {
					return
				}
				c := &l.counts[kind]
				c.done.Add(1)
				if err != nil {
					c.mu.Lock()
					c.failed = append(c.failed, fmt.Errorf("%s: %w", time.Now().Format(time.TimeOnly), err))
					c.mu.Unlock()
				}
			}
		})
	}
	for k := range clients {
		writer, reader, fresh := kubernetes.NewForConfigOrDie(ownTransport(r.config, k, false)), kubernetes.NewForConfigOrDie(ownTransport(r.config, k, false)), kubernetes.NewForConfigOrDie(ownTransport(r.config, k, true))
		begin(0, func(ctx context.Context, i int) error { return write(ctx, writer, fmt.Sprintf("w%d-%d", k, i)) })
		begin(1, func(ctx context.Context, i int) error {
			_, err := reader.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{ResourceVersion: []string{"", "0"}[i%2]})
			return err
		})
		begin(2, func(ctx context.Context, i int) error {
			if i%5 == 0 {
				return write(ctx, fresh, fmt.Sprintf("f%d-%d", k, i))
			}
			_, err := fresh.CoreV1().Namespaces().Get(ctx, "default", metav1.GetOptions{})
			return err
		})
	}
	l.informer = informers.NewSharedInformerFactoryWithOptions(l.client, 0, informers.WithNamespace("default"))
	l.informer.Core().V1().ConfigMaps().Informer()
	l.informer.Start(l.halt)
	l.informer.WaitForCacheSync(l.halt)
	t.Cleanup(l.stop)
	return l
}

// ownTransport gives a client connections of its own, new ones for each request if fresh is set. Every other client
// uses HTTP/1.1.
func ownTransport(config *rest.Config, k int, fresh bool) *rest.Config {
	own := rest.CopyConfig(config)
	if k%2 == 1 {
		own.NextProtos = []string{"http/1.1"}
	}
	own.Dial = (&net.Dialer{}).DialContext
	if fresh {
		own.Wrap(func(rt http.RoundTripper) http.RoundTripper { return closing{rt} })
	}
	return own
}

// closing closes the connection after each request.
type closing struct{ http.RoundTripper }

func (c closing) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Close = true
	return c.RoundTripper.RoundTrip(req)
}

// write creates, changes and deletes an object. Every tenth object stays.
func write(ctx context.Context, client kubernetes.Interface, name string) error {
	maps := client.CoreV1().ConfigMaps("default")
	object, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	object.Data = map[string]string{"k": "v"}
	if _, err := maps.Update(ctx, object, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update: %w", err)
	}
	if strings.HasSuffix(name, "0") {
		return nil
	}
	if err := maps.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	return nil
}

// proceed waits until clients of each kind have completed n more requests.
func (l *load) proceed(t *testing.T, n int64) {
	t.Helper()
	for kind := range l.counts {
		until := l.counts[kind].done.Load() + n
		proctest.Eventually(t, loads[kind]+" go on", func() error {
			if done := l.counts[kind].done.Load(); done < until {
				return fmt.Errorf("%d of %d", done, until)
			}
			return nil
		})
	}
}

// stop stops the clients, but not the informer.
func (l *load) stop() {
	l.cancel()
	l.running.Wait()
}

// checkInformer compares the informer's objects with the server's, and stops the informer.
func (l *load) checkInformer(t *testing.T) {
	t.Helper()
	defer l.informer.Shutdown()
	defer close(l.halt)
	proctest.Eventually(t, "the informer has the server's objects", func() error {
		list, err := l.client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		store := l.informer.Core().V1().ConfigMaps().Informer().GetStore()
		if len(store.ListKeys()) != len(list.Items) {
			return fmt.Errorf("%d objects of %d", len(store.ListKeys()), len(list.Items))
		}
		for _, item := range list.Items {
			known, ok, err := store.GetByKey("default/" + item.Name)
			if err != nil || !ok || known.(*corev1.ConfigMap).ResourceVersion != item.ResourceVersion {
				return fmt.Errorf("%s: %v %v", item.Name, ok, err)
			}
		}
		return nil
	})
}
