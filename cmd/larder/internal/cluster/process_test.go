package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/larder-io/larder/cmd/larder/internal/server/pki"
	"github.com/larder-io/larder/internal/e2e/e2etest"
	"github.com/larder-io/larder/internal/proctest"
)

// running is a `larder cluster` that a test drives.
type running struct {
	*proctest.Process
	t      *testing.T
	dir    string
	config *rest.Config
	client kubernetes.Interface
}

// start runs a cluster until the test ends.
func start(t *testing.T, nodes int) *running {
	t.Helper()
	r := &running{t: t, dir: filepath.Join(t.TempDir(), "data")}
	port := strconv.Itoa(proctest.Port(t))
	r.Process = proctest.New(t, "the cluster", func() *exec.Cmd {
		return exec.Command(*larder, "cluster", "--data-dir", r.dir, "--secure-port", port,
			"--programs", *others, "--nodes", strconv.Itoa(nodes), "--unsafe-no-fsync")
	})
	must(t, r.Start())
	r.Await(t, fmt.Sprintf("cluster: %d nodes, ready after", nodes))
	r.config = e2etest.Config(t, filepath.Join(r.dir, "admin.kubeconfig"))
	r.client = kubernetes.NewForConfigOrDie(r.config)
	return r
}

// as returns a client with a certificate that the cluster's CA has signed.
func (r *running) as(t *testing.T, user string, groups ...string) kubernetes.Interface {
	t.Helper()
	authority, err := pki.Load(filepath.Join(r.dir, "pki"))
	must(t, err)
	certPEM, keyPEM, err := authority.IssueClient(user, groups...)
	must(t, err)
	config := rest.AnonymousClientConfig(r.config)
	config.CertData, config.KeyData = certPEM, keyPEM
	return kubernetes.NewForConfigOrDie(config)
}

// bearer is a client with a token.
func (r *running) bearer(t *testing.T, token string) kubernetes.Interface {
	t.Helper()
	config := rest.AnonymousClientConfig(r.config)
	config.BearerToken = token
	return kubernetes.NewForConfigOrDie(config)
}

// namespace makes a namespace that is ready for pods. It is removed when the test ends,
// which waits until there is nothing left of it.
func (r *running) namespace(t *testing.T, name string) string {
	t.Helper()
	ctx := context.Background()
	_, err := r.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	must(t, err)
	eventually(t, name+" has its service account", func() error {
		_, err := r.client.CoreV1().ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	t.Cleanup(func() {
		must(t, r.client.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{}))
		eventually(t, name+" is gone", func() error {
			ns, err := r.client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
			if err == nil {
				return fmt.Errorf("still there: %+v", ns.Status)
			}
			return ignore(err, apierrors.IsNotFound)
		})
	})
	return name
}

func ignore(err error, is func(error) bool) error {
	if is(err) {
		return nil
	}
	return err
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually asks until check returns nil, less often than proctest's function, since it
// is about hundreds of objects.
func eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	pace := time.NewTicker(100 * time.Millisecond)
	defer pace.Stop()
	for deadline := time.Now().Add(2 * proctest.Patience); ; <-pace.C {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: never: %v", what, err)
		}
	}
}

// usual are lines that the programs log as errors over any API server: the same work over a kube-apiserver causes
// them, too.
var usual = []*regexp.Regexp{
	// Both programs read a configuration that does not exist.
	regexp.MustCompile(`The manifest file is empty, ignoring`),
	// A controller of 1.36 that receives a change before it has seen its own write tries again later, and logs an
	// error.
	regexp.MustCompile(`is not as new as written version`),
	regexp.MustCompile(`informer cache is out of date`),
	// The programs learn that another client has written or deleted an object that they were about to write, or its
	// namespace. They retry or give up. Kwok deletes a pod again when it sees the update of its first deletion.
	regexp.MustCompile(`Operation cannot be fulfilled on `),
	regexp.MustCompile(`\\"[a-z0-9.-]+\\" not found`),
	regexp.MustCompile(`"Status after running PostFilter plugins for pod".* status="not found"`),
	regexp.MustCompile(`is forbidden: unable to create new content in namespace \S+ because it is being terminated`),
	// The server refuses requests that a test makes them send.
	regexp.MustCompile(`is forbidden: exceeded quota: q,`),
	// Programs that receive a signal log that.
	regexp.MustCompile(`"command failed" err="finished without leader elect"`),
}

// expected are lines that the server logs because of the tests.
var expected = []*regexp.Regexp{
	regexp.MustCompile(`oken has been invalidated`),
	// Upstream's controllers request an aggregated server's documents when its APIService is created, and again when
	// the server can be reached.
	regexp.MustCompile(`controller\.go:\d+\] "Unhandled Error" err=(<|"loading OpenAPI spec for \\"v1beta1\.metrics|"Error updating APIService \\"v1beta1\.metrics)`),
}

// headed begins an entry of klog's.
var headed = regexp.MustCompile(`^[WEF]\d{4} \d\d:\d\d:\d\d\.`)

// problem is a line that a program logs as an error, or as a warning about a list or watch;
// those in JSON are kwok's.
var problem = regexp.MustCompile(`^[EF]\d{4} |^W\d{4} \S+ +\d+ reflector\.go|"level":"ERROR"`)

// blames matches lines that say that the server refused a request wrongly, closed a connection, or sent a malformed
// respond. Other unusual errors are only shown: a controller under load can fall behind in more ways than a list can
// name.
var blames = regexp.MustCompile(`(?i)reflector\.go|failed to (watch|list)|internal ?error|connection re|unexpected EOF|http2:|tls:|x509|unauthorized|forbidden|not acceptable|decod|unmarshal|unknown field|panic`)

// complaints returns the logged errors that blame the server and are not usual, with duplicates.
func (r *running) complaints() (all []string) {
	logs, err := filepath.Glob(filepath.Join(r.dir, "logs", "*.log"))
	must(r.t, err)
	if len(logs) != 3 {
		r.t.Fatalf("logs are %v", logs)
	}
	for _, log := range logs {
		text, err := os.ReadFile(log)
		must(r.t, err)
		for line := range bytes.Lines(text) {
			switch line := string(bytes.TrimSpace(line)); {
			case !problem.MatchString(line) || matches(usual, line):
			case blames.MatchString(line):
				all = append(all, filepath.Base(log)+": "+line)
			default:
				r.t.Logf("%s: %s", filepath.Base(log), line)
			}
		}
	}
	return all
}

func matches(expressions []*regexp.Regexp, line string) bool {
	for _, e := range expressions {
		if e.MatchString(line) {
			return true
		}
	}
	return false
}

// children waits until the cluster has started its programs and returns their processes. Other children may exist for
// a moment; they are Go's own.
func (r *running) children() (all []int) {
	r.t.Helper()
	dir, err := filepath.Abs(*others)
	must(r.t, err)
	eventually(r.t, "three programs run", func() error {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", r.PID()))
		must(r.t, err)
		all = nil
		for _, task := range tasks {
			text, _ := os.ReadFile(task) // fails if the thread has ended
			for field := range strings.FieldsSeq(string(text)) {
				pid, err := strconv.Atoi(field)
				must(r.t, err)
				if command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); strings.HasPrefix(string(command), dir) {
					all = append(all, pid)
				}
			}
		}
		if len(all) != 3 {
			return fmt.Errorf("processes %v", all)
		}
		return nil
	})
	return all
}

// ended waits until no process of pids is left.
func ended(t *testing.T, pids []int) {
	t.Helper()
	for _, pid := range pids {
		eventually(t, fmt.Sprintf("process %d ends", pid), func() error {
			if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("kill: %v", err)
			}
			return nil
		})
	}
}
