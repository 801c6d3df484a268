package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/larder-io/larder/internal/proctest"
)

// block is a fenced block of a document. The words after the fence say how the test runs the block:
//
//	sh            runs in the shell of the document, and must succeed
//	sh server     stays in the foreground: the test waits until it is ready, and continues
//	sh stopped    runs after all servers of the document have ended
//	console       does not run: it needs other machines, programs or much time
type block struct {
	kind, text string
	line       int
}

var fence = regexp.MustCompile("(?m)^```(.*)$")

// blocks returns the fenced blocks of a document.
func blocks(t *testing.T, text string) []block {
	t.Helper()
	var all []block
	marks := fence.FindAllStringSubmatchIndex(text, -1)
	if len(marks)%2 != 0 {
		t.Fatal("a block has no end")
	}
	for i := 0; i < len(marks); i += 2 {
		begin, end := marks[i], marks[i+1]
		all = append(all, block{
			kind: text[begin[2]:begin[3]], text: text[begin[1]+1 : end[0]], line: strings.Count(text[:begin[0]], "\n") + 1,
		})
	}
	return all
}

// kinds are the kinds of blocks that documents may have. Commands in other blocks would not run.
var kinds = []string{"sh", "sh server", "sh stopped", "console", "go", "yaml", "json", "ini", "text", "promql", "mermaid", ""}

// documents returns the texts of all documents below docs, by path.
func documents(t *testing.T) map[string]string {
	t.Helper()
	root, all := filepath.Join("..", "..", "docs"), make(map[string]string)
	for _, pattern := range []string{"*.md", "*/*.md"} {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			name, _ := filepath.Rel(root, path)
			all[name] = string(text)
		}
	}
	if len(all) < 5 {
		t.Fatalf("found %d documents, want more", len(all))
	}
	return all
}

// TestCommandsOfDocumentsWork runs the commands in the documents below docs, in the order of each document, in an empty
// directory instead of a checkout. The documents' ports are occupied, so that the servers get others. With -stock, a
// relay's upstream is a kube-apiserver.
func TestCommandsOfDocumentsWork(t *testing.T) {
	occupy(t, documentPorts...)
	ran := 0
	for name, text := range documents(t) {
		all := blocks(t, text)
		for _, b := range all {
			if !slices.Contains(kinds, b.kind) {
				t.Errorf("%s:%d: a block of kind %q: want one of %q", name, b.line, b.kind, kinds)
			}
		}
		if !slices.ContainsFunc(all, func(b block) bool { return strings.HasPrefix(b.kind, "sh") }) {
			continue
		}
		ran++
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShell(t)
			for _, b := range all {
				s.at = fmt.Sprintf("%s:%d", name, b.line)
				switch b.kind {
				case "sh":
					s.run(b.text)
				case "sh server":
					if *stockBinary != "" && name == "relay.md" && b.text == "larder serve\n" {
						s.serveStock()
					} else {
						s.serve(b.text)
					}
				case "sh stopped":
					s.stop()
					s.run(b.text)
				}
			}
			s.stop()
		})
	}
	if ran < 5 {
		t.Errorf("%d documents have commands, want more", ran)
	}
}

// shell runs the commands of a document. Each command starts with the environment and the directory of the previous
// one.
type shell struct {
	t         *testing.T
	dir, bin  string
	ports     map[string]string
	servers   []*proctest.Process
	at, state string
}

// documentPorts are the ports that documents use.
var documentPorts = []string{"6443", "6444", "6445", "2379", "2380"}

// occupy listens on ports until the test ends, as other programs may. It ignores ports that are already in use.
func occupy(t *testing.T, ports ...string) {
	t.Helper()
	for _, port := range ports {
		if l, err := net.Listen("tcp", "127.0.0.1:"+port); err == nil {
			t.Cleanup(func() { l.Close() })
		}
	}
}

func newShell(t *testing.T) *shell {
	t.Helper()
	dir, err := os.MkdirTemp("", "larder-doc-") // short: a socket's path must fit
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &shell{t: t, dir: filepath.Join(dir, "larder"), bin: filepath.Join(dir, "bin"), state: filepath.Join(dir, "state"), ports: make(map[string]string)}
	for i, port := range proctest.Ports(t, len(documentPorts)) {
		s.ports[documentPorts[i]] = strconv.Itoa(port)
	}
	for _, path := range []string{s.dir, s.bin, filepath.Join(dir, "home")} {
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"etcd", "kube-apiserver"} {
		if err := os.Symlink(binaries.larder, filepath.Join(s.bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(binaries.kubectl, filepath.Join(s.bin, "kubectl")); err != nil {
		t.Fatal(err)
	}
	// A server without a port gets a free one. Programs are not built again.
	s.script("larder", `case "$1:$*" in
serve:*--secure-port*|dev:*--secure-port*) ;;
serve:*|dev:*) set -- "$@" --secure-port `+s.ports["6443"]+` ;;
esac
exec -a "$0" `+binaries.larder+` "$@"`)
	s.script("go", `case "$*" in
"build -o "*" ./cmd/larder") ln -s "`+filepath.Join(s.bin, "larder")+`" "$3" ;;
"build -o "*" k8s.io/kubernetes/cmd/kubectl") ln -s "`+binaries.kubectl+`" "$3" ;;
"run ./cmd/larder "*) shift 2; exec larder "$@" ;;
*) echo "the test does not support: go $*" >&2; exit 1 ;;
esac`)
	initial := fmt.Sprintf("export HOME=%q PATH=%q:$PATH\ncd %q\n", filepath.Join(dir, "home"), s.bin, s.dir)
	if err := os.WriteFile(s.state, []byte(initial), 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

// script writes a script into the directory of programs.
func (s *shell) script(name, text string) {
	s.t.Helper()
	if err := writeProgram(filepath.Join(s.bin, name), "#!/usr/bin/env bash\n"+text+"\n"); err != nil {
		s.t.Fatal(err)
	}
}

// writeProgram writes a program that can be started immediately. A process that is forked while the file is open also
// has it open until it calls exec, and the kernel starts no file that is open for writing.
func writeProgram(file, text string) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(file, []byte(text), 0o700)
}

var number = regexp.MustCompile(`\b\d{4}\b`)

// command returns text as a command that a shell runs.
func (s *shell) command(ctx context.Context, text string) *exec.Cmd {
	text = number.ReplaceAllStringFunc(text, func(n string) string {
		if port, ok := s.ports[n]; ok {
			return port
		}
		return n
	})
	cmd := exec.CommandContext(ctx, "bash", "-c", "set -euo pipefail\n. '"+s.state+"'\n"+text)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + os.TempDir()}
	return cmd
}

// run runs commands that exit by themselves.
func (s *shell) run(text string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), proctest.Patience)
	defer cancel()
	keep := `{ export -p; printf 'cd %q\n' "$PWD"; } > '` + s.state + "'"
	cmd := s.command(ctx, text+"\n"+keep)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Fatalf("%s: %v\n%s\n%s", s.at, err, text, out)
	}
}

// readiness are log messages of servers that are ready.
var readiness = []string{"ready after", "ready to serve client requests", "relay of"}

// serve starts a command that stays in the foreground, and waits until it is ready.
func (s *shell) serve(text string) {
	s.t.Helper()
	p := proctest.New(s.t, s.at, func() *exec.Cmd { return s.command(s.t.Context(), "exec "+text) })
	if err := p.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.servers = append(s.servers, p)
	p.Eventually(s.t, "is ready", func() error {
		out := p.Output()
		if !slices.ContainsFunc(readiness, func(text string) bool { return strings.Contains(out, text) }) {
			return errors.New(out)
		}
		return nil
	})
}

// serveStock starts kube-apiserver instead of `larder serve`, and writes the kubeconfig that `larder serve` would
// write.
func (s *shell) serveStock() {
	s.t.Helper()
	port, err := strconv.Atoi(s.ports["6443"])
	if err != nil {
		s.t.Fatal(err)
	}
	p := newPlane(s.t)
	m := p.member(true, "", port).start()
	ca, err := os.ReadFile(p.arg("client-ca-file"))
	if err != nil {
		s.t.Fatal(err)
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: m.url(), CertificateAuthorityData: ca}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: m.config().BearerToken}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	if err := clientcmd.WriteToFile(*config, filepath.Join(s.dir, "larder-data", "admin.kubeconfig")); err != nil {
		s.t.Fatal(err)
	}
}

// stop stops all servers, the last one first.
func (s *shell) stop() {
	s.t.Helper()
	for _, p := range slices.Backward(s.servers) {
		if err := p.Terminate(s.t); err != nil && !strings.Contains(p.Output(), "ready to serve client requests") { // etcd exits with the signal
			s.t.Errorf("%s: %v\n%s", s.at, err, p.Output())
		}
	}
	s.servers = nil
}
