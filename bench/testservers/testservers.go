package testservers

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/keyutil"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/process"
)

// issuer is the issuer of service-account tokens.
const issuer = "https://kubernetes.default.svc"

// Config configures a Servers.
type Config struct {
	// Dir is an existing directory for the servers' files.
	Dir string
	// Stock (kube-apiserver), Larder and Etcd are the paths of the programs. Those that are not started may be "".
	Stock, Larder, Etcd string
	// Streams, if positive, makes the Targets use HTTP/2, with up to as many concurrent requests on a connection.
	Streams int
}

// Servers is a set of servers. The zero value is not usable: call New.
type Servers struct {
	config   Config
	token    string   // the administrator's token
	others   []string // the tenants' tokens
	etcd     *Server
	all      []*Server
	reserved []net.PacketConn // see port
	count    int              // number of files and directories, part of their names
	signer   tls.Certificate  // CA of client certificates
}

// New returns a Servers whose files are in the new directory name in c.Dir, and starts its etcd. The etcd does not
// sync files, so that results do not depend on the speed of the disk.
func New(ctx context.Context, c Config, name string) (*Servers, error) {
	if c.Dir == "" {
		return nil, errors.New("testservers: no directory")
	}
	signer, err := SelfSigned("clients")
	if err != nil {
		return nil, err
	}
	c.Dir = filepath.Join(c.Dir, name)
	if err := os.Mkdir(c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("testservers: %w", err)
	}
	// Tokens are random, to keep other users of the machine from using the servers.
	f := &Servers{config: c, token: rand.Text(), others: []string{rand.Text(), rand.Text()}, signer: signer}
	if err = f.prepare(); err == nil {
		f.etcd, err = f.startEtcd(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Close stops all servers in reverse order and removes their files.
func (f *Servers) Close() error {
	var all []error
	for i := len(f.all) - 1; i >= 0; i-- {
		all = append(all, f.all[i].Stop())
	}
	for _, lock := range f.reserved {
		lock.Close()
	}
	f.reserved = nil
	return errors.Join(append(all, os.RemoveAll(f.config.Dir))...)
}

// Tenant returns a Target with the token of user number i of bench.Tenants, 0 or 1.
func (f *Servers) Tenant(s *Server, i int) *bench.Target { return s.Target.As(f.others[i]) }

// Servers returns all started servers, including those that have ended.
func (f *Servers) Servers() []*Server { return slices.Clone(f.all) }

func (f *Servers) prepare() error {
	users := f.token + ",admin,admin,system:masters\n"
	for i, token := range f.others {
		users += fmt.Sprintf("%s,tenant-%d,tenant-%d,%s\n", token, i, i, bench.Tenants)
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return fmt.Errorf("testservers: %w", err)
	}
	signing, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return fmt.Errorf("testservers: %w", err)
	}
	for file, data := range map[string][]byte{f.tokens(): []byte(users), f.CAFile(): certificatePEM(f.signer.Leaf.Raw), f.SigningKey(): signing} {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			return fmt.Errorf("testservers: %w", err)
		}
	}
	return nil
}

func (f *Servers) tokens() string { return filepath.Join(f.config.Dir, "tokens.csv") }

// SigningKey returns the path of the key that signs service account tokens.
func (f *Servers) SigningKey() string { return filepath.Join(f.config.Dir, "sa.key") }

// CAFile returns the path of the CA that signs client certificates.
func (f *Servers) CAFile() string { return filepath.Join(f.config.Dir, "client-ca.crt") }

// Etcd returns the shared etcd.
func (f *Servers) Etcd() *Server { return f.etcd }

// EtcdURL returns the URL of the shared etcd.
func (f *Servers) EtcdURL() string { return etcdURL(f.etcd) }

func etcdURL(etcd *Server) string { return "http://" + etcd.Target.Address() }

func (f *Servers) startEtcd(ctx context.Context) (*Server, error) {
	dir, port, err := f.allocate("etcd")
	if err != nil {
		return nil, err
	}
	url := "http://127.0.0.1:" + port
	return f.startAPI(ctx, "etcd", f.config.Etcd, url, 0, []string{
		"--data-dir=" + dir, "--listen-client-urls=" + url, "--advertise-client-urls=" + url, "--listen-peer-urls=http://127.0.0.1:0",
		"--unsafe-no-fsync", "--quota-backend-bytes=8589934592", "--log-level=warn",
	})
}

// Start starts a server on the shared etcd and waits until it is ready. kube-apiserver has its default flags, except
// that it does not compact etcd or write the endpoints of the kubernetes Service. Larder does both, and two servers at
// one address would overwrite each other's endpoints.
func (f *Servers) Start(ctx context.Context, kind string, g Guards) (*Server, error) {
	return f.start(ctx, kind, f.EtcdURL(), g)
}

func (f *Servers) start(ctx context.Context, kind, etcd string, g Guards) (*Server, error) {
	name, program := "larder", f.config.Larder
	if kind == Stock {
		name, program = Stock, f.config.Stock
	}
	dir, port, err := f.allocate(name)
	if err != nil {
		return nil, err
	}
	guards, err := g.flags(dir)
	if err != nil {
		return nil, err
	}
	args := []string{"--cert-dir=" + dir, "--endpoint-reconciler-type=none", "--etcd-compaction-interval=0"}
	if kind == Larder {
		args = []string{"serve", "--data-dir=" + dir}
	}
	return f.startAPI(ctx, name, program, "https://127.0.0.1:"+port, f.config.Streams, append(append(args, guards...),
		"--etcd-servers="+etcd, "--bind-address=127.0.0.1", "--secure-port="+port, "--token-auth-file="+f.tokens(), "--client-ca-file="+f.CAFile(),
		"--service-cluster-ip-range=10.0.0.0/24", "--service-account-issuer="+issuer,
		"--service-account-signing-key-file="+f.SigningKey(), "--service-account-key-file="+f.SigningKey(),
	))
}

// Guards enables checks that a server makes before every request.
type Guards struct {
	Access bool // RBAC; otherwise every authenticated user may do everything
	Audit  bool // an audit log of metadata
	Flow   bool // flow control; otherwise the server only counts requests
	Nodes  bool // RBAC, the Node authorizer and NodeRestriction
}

// DefaultGuards returns the default guards.
func DefaultGuards() Guards { return Guards{Access: true, Flow: true} }

// flags returns the flags of the guards. The audit log is in dir.
func (g Guards) flags(dir string) ([]string, error) {
	flags := []string{fmt.Sprintf("--enable-priority-and-fairness=%t", g.Flow)}
	switch {
	case g.Nodes:
		flags = append(flags, "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction")
	case g.Access:
		flags = append(flags, "--authorization-mode=RBAC")
	default:
		flags = append(flags, "--authorization-mode=AlwaysAllow")
	}
	if !g.Audit {
		return flags, nil
	}
	policy := filepath.Join(dir, "audit-policy.yaml")
	const text = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n"
	if err := os.WriteFile(policy, []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("testservers: %w", err)
	}
	return append(flags, "--audit-policy-file="+policy, "--audit-log-path="+filepath.Join(dir, "audit.log")), nil
}

// StartEmpty starts a server on a new, empty etcd and waits until it is ready. Larder embeds the etcd. kube-apiserver
// gets a separate process, which Server.Stop ends too.
func (f *Servers) StartEmpty(ctx context.Context, kind string) (*Server, error) {
	if kind == Stock {
		etcd, err := f.startEtcd(ctx)
		if err != nil {
			return nil, err
		}
		server, err := f.start(ctx, kind, etcdURL(etcd), DefaultGuards())
		if err == nil {
			server.etcd = etcd
		}
		return server, err
	}
	dir, port, err := f.allocate("larder")
	if err != nil {
		return nil, err
	}
	return f.startAPI(ctx, "larder", f.config.Larder, "https://127.0.0.1:"+port, f.config.Streams, []string{
		"serve", "--data-dir=" + dir, "--unsafe-no-fsync", "--bind-address=127.0.0.1", "--secure-port=" + port, "--token-auth-file=" + f.tokens(),
		"--authorization-mode=RBAC", "--service-cluster-ip-range=10.0.0.0/24",
	})
}

// StartOther starts another program that serves at least a part of the API over TLS and HTTP/1.1, and waits until it
// is ready. args returns the program's arguments for a port.
func (f *Servers) StartOther(ctx context.Context, name, program string, args func(port string) []string) (*Server, error) {
	_, port, err := f.allocate(name)
	if err != nil {
		return nil, err
	}
	return f.startAPI(ctx, name, program, "https://127.0.0.1:"+port, 0, args(port))
}

// allocate returns a new directory and a free port for a server.
func (f *Servers) allocate(name string) (dir, port string, err error) {
	f.count++
	dir = filepath.Join(f.config.Dir, fmt.Sprintf("%s-%d", name, f.count))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", "", fmt.Errorf("testservers: %w", err)
	}
	if port, err = f.port(); err != nil {
		return "", "", err
	}
	return dir, port, nil
}

// startAPI starts a server with a Target, and waits until it is ready. Positive streams make the Target use HTTP/2.
func (f *Servers) startAPI(ctx context.Context, name, program, url string, streams int, args []string) (*Server, error) {
	target, err := bench.TargetOf(&rest.Config{Host: url, BearerToken: f.token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
	if err != nil {
		return nil, err
	}
	server, err := f.StartBeside(name, program, args)
	if err != nil {
		return nil, err
	}
	if streams > 0 {
		target.UseHTTP2(streams)
	}
	target.Process = server.Process
	if f.etcd != nil {
		target.Beside = []process.Process{f.etcd.Process}
	}
	server.Target = target
	server.Again = func(ctx context.Context) (*Server, error) {
		return f.startAPI(ctx, name, program, url, streams, args)
	}
	const longest = 5 * time.Minute
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	defer context.AfterFunc(server.exited, cancel)()
	if err := target.Ready(ctx); err != nil {
		return nil, errors.Join(server.CheckAlive(), err, server.Stop())
	}
	return server, nil
}

// Ports are below the ranges that systems use for outgoing connections and for listeners on port 0. So no other
// program takes a chosen port before the server listens.
const (
	firstPort = 11_000
	lastPort  = 17_000
)

// port returns a port on which no process listens. Until Close, no other Servers uses it.
func (f *Servers) port() (string, error) {
	const tries = 1000
	for range tries {
		port := strconv.Itoa(firstPort + mathrand.IntN(lastPort-firstPort))
		lock, err := net.ListenPacket("udp4", "127.0.0.1:"+port) // reserves the port among Servers
		if err != nil {
			continue
		}
		l, err := net.Listen("tcp", ":"+port)
		if err != nil {
			lock.Close()
			continue
		}
		l.Close()
		f.reserved = append(f.reserved, lock)
		return port, nil
	}
	return "", fmt.Errorf("testservers: no free port in %d tries", tries)
}

// grace is how long a server may take to end before Stop kills it.
const grace = 15 * time.Second

// Kinds of measured servers.
const (
	Stock  = "kube-apiserver"
	Larder = "Larder"
)

// Trials configures which servers are measured, in turn. Build completes TestServers.
type Trials struct {
	TestServers Config
	// Servers are Stock and Larder, or one of them. Rounds is how often each is measured.
	Servers []string
	Rounds  int
	// Say, unless nil, is called with each line of progress.
	Say func(string)
}

// Check returns an error if a server is unknown or Rounds is less than 1.
func (t *Trials) Check() error {
	for _, s := range t.Servers {
		if s != Stock && s != Larder {
			return fmt.Errorf("testservers: --server=%s: want %s or %s", s, Stock, Larder)
		}
	}
	if t.Rounds < 1 {
		return fmt.Errorf("testservers: --rounds must be at least 1, is %d", t.Rounds)
	}
	return nil
}

// Sayf formats a line and calls Say.
func (t *Trials) Sayf(format string, args ...any) {
	if t.Say != nil {
		t.Say(fmt.Sprintf(format, args...))
	}
}

// Each calls do for each server in each round, counted from 1, until one fails. It returns all results, with their Round
// if there are several, and an error that names the server. Every second round runs the servers in reverse order, so
// that a change in the machine's speed favours none.
func (t *Trials) Each(do func(server string, round int) ([]*bench.Result, error)) (all []*bench.Result, err error) {
	for round := range t.Rounds {
		order := slices.Clone(t.Servers)
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, server := range order {
			found, err := do(server, round+1)
			for _, r := range found {
				if t.Rounds > 1 {
					r.Round = round + 1
				}
			}
			all = append(all, found...)
			if err != nil {
				return all, fmt.Errorf("%s: %w", server, err)
			}
		}
	}
	return all, nil
}
