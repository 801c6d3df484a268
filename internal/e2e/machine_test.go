package e2e_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"

	"github.com/larder-io/larder/internal/proctest"
)

// endpointError matches a line of the log with the severity ERROR about endpoints.
var endpointError = regexp.MustCompile(`(?m)^E\d{4} .*[Ee]ndpoint.*`)

// TestMachineMayHaveAnyName checks that a server and a relay start on a machine whose name is not allowed in
// certificates.
func TestMachineMayHaveAnyName(t *testing.T) {
	const name = "türkis"
	upstream := serve(t, "--unsafe-no-fsync")
	for _, test := range []struct {
		started string
		args    []string
	}{
		{"ready after", []string{"serve", "--unsafe-no-fsync", "--data-dir", filepath.Join(t.TempDir(), "data")}},
		{"relay of", []string{"relay", "--cert-dir", t.TempDir(), "--upstream", upstream.kubeconfig()}},
	} {
		t.Run(test.args[0], func(t *testing.T) {
			p := proctest.New(t, "the server", func() *exec.Cmd {
				return onHost(name, binaries.larder, append(test.args, "--secure-port", strconv.Itoa(proctest.Port(t)))...)
			})
			if err := p.Start(); err != nil {
				t.Fatal(err)
			}
			p.Await(t, test.started)
			if err := p.Terminate(t); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestServerStartsWithoutANetwork checks that a server that listens on all addresses starts on a machine without a
// network. It has no address to publish, so the services may have any IP family.
func TestServerStartsWithoutANetwork(t *testing.T) {
	for _, test := range []struct{ bind, services string }{
		{"0.0.0.0", "10.0.0.0/24"}, {"0.0.0.0", "fd00::/112"}, {"::", "fd00::/112"}, {"::", "10.0.0.0/24,fd00::/112"},
	} {
		t.Run(test.bind+" "+test.services, func(t *testing.T) {
			p := proctest.New(t, "the server", func() *exec.Cmd {
				cmd := onHost("alone", binaries.larder, "serve", "--unsafe-no-fsync", "--data-dir", filepath.Join(t.TempDir(), "data"),
					"--bind-address", test.bind, "--service-cluster-ip-range", test.services, "--secure-port", strconv.Itoa(proctest.Port(t)))
				cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWNET
				return cmd
			})
			if err := p.Start(); err != nil {
				t.Fatal(err)
			}
			p.Await(t, "ready after")
			if err := p.Terminate(t); err != nil {
				t.Error(err)
			}
			if logged := endpointError.FindAllString(p.Output(), -1); len(logged) > 0 {
				t.Errorf("the server logged errors about endpoints: %q", logged)
			}
		})
	}
}

// TestServersRunInFIPSMode checks that servers need no cryptography that FIPS 140-3 forbids. With fips140=only, where
// such an algorithm fails, etcd cannot be embedded: it makes the IDs of its members with SHA-1.
func TestServersRunInFIPSMode(t *testing.T) {
	for mode, args := range map[string][]string{
		"on": {"--unsafe-no-fsync"}, "only": {"--etcd-servers", serveEtcd(t)},
	} {
		t.Run(mode, func(t *testing.T) {
			p := newProcess(t, args...)
			p.Process = proctest.New(t, "the server", func() *exec.Cmd {
				cmd := p.cmd()
				cmd.Env = append(os.Environ(), "GODEBUG=fips140="+mode)
				return cmd
			})
			p.start()
			p.awaitReady()
			put(t, p.client(), "default", "a")
			if err := p.Terminate(t); err != nil {
				t.Error(err)
			}
		})
	}
}
