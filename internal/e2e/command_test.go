package e2e_test

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/larder-io/larder/internal/proctest"
)

// larder runs one command that exits by itself. It returns the output, with lines of stderr marked, and the exit code
// if it is not 0.
func larder(t *testing.T, args ...string) string {
	t.Helper()
	return run(t, exec.Command(binaries.larder, args...))
}

func run(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Dir = t.TempDir()
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timeout := time.AfterFunc(proctest.Patience, func() { cmd.Process.Kill() })
	defer timeout.Stop()
	err := cmd.Wait()
	out := stdout.String()
	for line := range strings.Lines(stderr.String()) {
		out += "! " + line
	}
	if err != nil {
		out += fmt.Sprintf("(%v)\n", err)
	}
	return out
}

// TestHelpAndErrorsAreAsRecorded compares help texts and errors with testdata/command. Errors in flags are found
// although the port is in use.
func TestHelpAndErrorsAreAsRecorded(t *testing.T) {
	occupy(t, "6443")
	datadriven.Walk(t, "testdata/command", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd != "larder" {
				d.Fatalf(t, "unknown command %q", d.Cmd)
			}
			return larder(t, split(d.Input)...)
		})
	})
}

// TestReasonNotToStartIsOneLine checks that a server that cannot start prints one line with the reason.
func TestReasonNotToStartIsOneLine(t *testing.T) {
	held := serve(t, "--unsafe-no-fsync")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := strconv.Itoa(taken.Addr().(*net.TCPAddr).Port)
	dir, planted := t.TempDir(), plantedDir(t)
	for _, test := range []struct {
		name string
		args []string
		want string
	}{
		{"data directory of another user", []string{"serve", "--data-dir", planted}, planted},
		{"data directory in another user's", []string{"serve", "--data-dir", filepath.Join(planted, "x")}, planted},
		{"data directory in use", []string{"serve", "--data-dir", held.dir}, "in use by another process"},
		{"data directory below a file", []string{"serve", "--data-dir", filepath.Join(held.kubeconfig(), "x")}, "not a directory"},
		{"port in use", []string{"serve", "--data-dir", dir, "--bind-address", "127.0.0.1", "--secure-port", port}, "--bind-address=127.0.0.1 --secure-port=" + port + ": failed to create listener: "},
		{"port of a cluster in use", []string{"cluster", "--data-dir", dir, "--secure-port", port}, "--secure-port=" + port + ": failed to create listener: "},
		{"port of a relay in use", []string{"relay", "--upstream", held.kubeconfig(), "--bind-address", "127.0.0.1", "--secure-port", port}, "larder: relay: --bind-address=127.0.0.1 --secure-port=" + port},
		{"kubeconfig of a relay missing", []string{"relay", "--upstream", "a=missing"}, "larder: --upstream: relay: kubeconfig "},
		{"address of another machine", []string{"serve", "--data-dir", dir, "--bind-address", "192.0.2.1"}, "--bind-address=192.0.2.1"},
		{"token file missing", []string{"serve", "--data-dir", dir, "--token-auth-file", "missing.csv"}, "larder: --token-auth-file: auth: open missing.csv: "},
		{"client CA missing", []string{"serve", "--data-dir", dir, "--client-ca-file", "missing.crt"}, "larder: --client-ca-file: auth: client CA: open missing.crt: "},
		{"certificate missing", []string{"serve", "--data-dir", dir, "--tls-cert-file", "missing.crt", "--tls-private-key-file", "missing.key"}, "larder: --tls-cert-file: server: serving certificate: open missing.crt: "},
		{"admission configuration missing", []string{"serve", "--data-dir", dir, "--admission-control-config-file", "missing.yaml"}, "larder: --admission-control-config-file: admission: "},
		{"signing key missing", []string{"serve", "--data-dir", dir, "--service-account-signing-key-file", "missing.key"}, "larder: --service-account-signing-key-file: "},
	} {
		t.Run(test.name, func(t *testing.T) {
			args := append([]string{test.args[0], "--secure-port", strconv.Itoa(proctest.Port(t))}, test.args[1:]...)
			if test.args[0] != "relay" {
				args = append(args, "--quiet")
			}
			out := larder(t, args...)
			lines := strings.Split(strings.TrimSpace(out), "\n")
			if len(lines) != 2 || lines[1] != "(exit status 1)" || !strings.Contains(lines[0], test.want) {
				t.Errorf("want one line with %q and exit 1, got:\n%s", test.want, out)
			}
		})
	}
}

// plantedDir returns a data directory into which another user may have put files: it belongs to another user or, if
// this process is not root, is world-writable.
func plantedDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "planted")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	err := os.Chmod(dir, 0o777)
	if os.Geteuid() == 0 {
		err = os.Chown(dir, 65533, 65533)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
