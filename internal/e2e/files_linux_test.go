package e2e_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/larder-io/larder/internal/proctest"
)

// limitFiles returns a command that runs cmd with a limit of open files.
func limitFiles(cmd *exec.Cmd, files int) *exec.Cmd {
	return exec.Command("sh", append([]string{"-c", fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, files)}, cmd.Args...)...)
}

// TestConnectionsLeaveFilesToEtcd opens as many connections as the process may have open files. The embedded etcd must
// be able to open files, because otherwise it ends the process. With an external etcd, connections may use all files.
func TestConnectionsLeaveFilesToEtcd(t *testing.T) {
	const files, reserved = 256, 150
	etcd := serveEtcd(t)
	for _, test := range []struct {
		name, command, limit string
		args                 []string
	}{
		{"serve", "serve", fmt.Sprint(files - reserved), nil},
		{"dev", "dev", fmt.Sprint(files - reserved), nil},
		{"a limit is set", "serve", "40", []string{"--max-connections", "40"}},
		{"etcd in another process", "serve", "+Inf", []string{"--etcd-servers", etcd}},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newProcess(t, test.args...)
			p.command = test.command
			p.Process = proctest.New(t, "the server", func() *exec.Cmd {
				return limitFiles(p.cmd(), files)
			})
			p.start()
			p.awaitReady()
			metrics, err := p.client().Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
			if want := `larder_connections_limit{of="all"} ` + test.limit + "\n"; err != nil || !strings.Contains(string(metrics), want) {
				t.Fatalf("no %s in the metrics, error %v", want, err)
			}
			if test.limit == "+Inf" {
				return
			}
			var last net.Conn
			for range files {
				if last, err = net.Dial("tcp", strings.TrimPrefix(p.url(), "https://")); err != nil {
					t.Fatal(err)
				}
				defer last.Close()
			}
			if _, err := last.Read(make([]byte, 1)); err != io.EOF && !strings.Contains(err.Error(), "reset") {
				t.Errorf("a request over the last connection: %v", err)
			}
			if open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.PID())); err != nil || len(open) > files-100 {
				t.Errorf("%d open files, error %v", len(open), err)
			}
		})
	}
}

// TestTooFewFilesAreReported checks that a server reports in one line that its embedded etcd may open too few files.
func TestTooFewFilesAreReported(t *testing.T) {
	cmd := limitFiles(exec.Command(binaries.larder, "serve", "--quiet", "--secure-port", strconv.Itoa(proctest.Port(t))), 64)
	if out, want := run(t, cmd), "! larder: server: embedded: this process may open 64 files (ulimit -n), and etcd needs more than 150\n(exit status 1)\n"; out != want {
		t.Errorf("got %swant %s", out, want)
	}
}
