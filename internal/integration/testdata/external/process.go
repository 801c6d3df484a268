// Package external starts the program that KAS names where Kubernetes' integration tests start
// a kube-apiserver inside their own process. It is compiled into these tests.
package external

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/rest"

	"github.com/larder-io/larder/internal/proctest"
)

// TB has the methods of testing.TB that are called.
type TB interface {
	Logf(format string, args ...any)
	Failed() bool
}

var hostname string

// Hostname sets the host name of all programs that are started later.
func Hostname(name string) string {
	hostname = name
	return name
}

// Skip ends a test that needs the server in its own process.
func Skip(t any) {
	if s, ok := t.(interface{ Skip(...any) }); ok {
		s.Skip("needs the server in this process")
	}
}

// flagOf returns the value of a flag in args, or "".
func flagOf(args []string, name string) string {
	for i, a := range args {
		if v, ok := strings.CutPrefix(a, "--"+name+"="); ok {
			return v
		}
		if a == "--"+name && i+1 < len(args) {
			return args[i+1]
		}
	}
	return ""
}

// process is a running or ended program.
type process struct {
	cmd  *exec.Cmd
	out  proctest.Buffer
	done chan struct{}
	err  error // set when done is closed
}

// startProcess starts the program that KAS names.
func startProcess(args []string) (*process, error) {
	program := os.Getenv("KAS")
	p := &process{cmd: exec.Command(program, args...), out: proctest.Buffer{Most: 1 << 20}, done: make(chan struct{})}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if hostname != "" {
		p.cmd = exec.Command("sh", append([]string{"-c", "hostname " + hostname + `; exec "$@"`, "sh", program}, args...)...)
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Cloneflags: syscall.CLONE_NEWUTS}
	}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { p.err = p.cmd.Wait(); close(p.done) }()
	return p, nil
}

// stop ends the program, and logs its output if the test has failed.
func (p *process) stop(t TB) {
	p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(proctest.Patience):
		t.Logf("the server has not ended %v after SIGTERM", proctest.Patience)
		p.cmd.Process.Kill()
		<-p.done
	}
	if t.Failed() {
		s := p.out.String()
		if len(s) > 6000 {
			s = s[:3000] + "\n...\n" + s[len(s)-3000:]
		}
		t.Logf("%s\n%s", strings.Join(p.cmd.Args, " "), s)
	}
}

// start runs the program on port and waits until it is healthy, or, if wait is false, until it responds. It returns the
// client configuration of a member of system:masters.
func start(t TB, dir string, port int, args []string, tokenFile string, wait bool) (*rest.Config, func(), error) {
	token := string(uuid.NewUUID())
	lines := token + ",system:apiserver," + string(uuid.NewUUID()) + ",\"system:masters\"\n"
	if f := flagOf(args, "token-auth-file"); f != "" {
		tokenFile = f
	}
	if tokenFile != "" {
		b, err := os.ReadFile(tokenFile)
		if err != nil {
			return nil, nil, err
		}
		lines += string(b)
	}
	tokens := filepath.Join(dir, "tokens.csv")
	if err := os.WriteFile(tokens, []byte(lines), 0o600); err != nil {
		return nil, nil, err
	}
	args = append(args, "--token-auth-file="+tokens, fmt.Sprintf("--secure-port=%d", port), "--cert-dir="+dir)
	for _, name := range []string{"bind-address", "advertise-address"} {
		if flagOf(args, name) == "" {
			args = append(args, "--"+name+"=127.0.0.1")
		}
	}
	p, err := startProcess(args)
	if err != nil {
		return nil, nil, err
	}
	stop := sync.OnceFunc(func() { p.stop(t) })
	cfg := &rest.Config{Host: fmt.Sprintf("https://127.0.0.1:%d", port), BearerToken: token, QPS: 1000, Burst: 10000}
	for deadline := time.Now().Add(proctest.Patience); ; time.Sleep(50 * time.Millisecond) {
		select {
		case <-p.done:
			return nil, nil, fmt.Errorf("the server ended: %v\n%s\n%s", p.err, strings.Join(args, " "), p.out.String())
		default:
		}
		if checkServes(cfg, dir, args, wait) == nil {
			return cfg, stop, nil
		}
		if time.Now().After(deadline) {
			stop()
			return nil, nil, fmt.Errorf("the server is not healthy after %v\n%s\n%s", proctest.Patience, strings.Join(args, " "), p.out.String())
		}
	}
}

// checkServes returns an error unless the server is healthy, or, if healthy is false, unless it responds. It makes cfg
// trust the server's certificate.
func checkServes(cfg *rest.Config, dir string, args []string, healthy bool) error {
	ca := flagOf(args, "tls-cert-file")
	given := ca != ""
	if !given {
		ca = filepath.Join(dir, "apiserver.crt")
	}
	b, err := os.ReadFile(ca)
	if err != nil {
		return err
	}
	cfg.TLSClientConfig = rest.TLSClientConfig{CAData: b}
	if given {
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(b)
		c, err := tls.Dial("tcp", strings.TrimPrefix(cfg.Host, "https://"), &tls.Config{RootCAs: pool})
		if err == nil {
			c.Close()
		} else if strings.Contains(err.Error(), "x509") {
			cfg.TLSClientConfig = rest.TLSClientConfig{Insecure: true}
		}
	}
	rt, err := rest.TransportFor(cfg)
	if err != nil {
		return err
	}
	client := http.Client{Transport: rt, Timeout: time.Minute}
	r, err := client.Get(cfg.Host + "/healthz")
	if err != nil {
		return err
	}
	r.Body.Close()
	if healthy && r.StatusCode != http.StatusOK {
		return errors.New(r.Status)
	}
	return nil
}
