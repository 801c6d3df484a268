package integration

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/larder-io/larder/internal/proctest"
)

var (
	program  = flag.String("program", "", "the program to test instead of Larder: a file named kube-apiserver, which gets kube-apiserver's flags")
	packages = flag.String("packages", "", "a regexp of the packages in testdata/packages.txt to test; empty means those marked fast")
	tests    = flag.String("tests", "", "a regexp of the tests to run")
	logs     = flag.String("logs", "", "a directory for the output of the tests")
)

// TestUpstream builds and runs the packages, one after the other. It fails if a test fails that testdata/failures.txt
// does not list.
func TestUpstream(t *testing.T) {
	if runtime.GOOS != "linux" || testing.Short() {
		t.Skip("upstream's tests need Linux and take minutes")
	}
	r := &runner{dir: t.TempDir(), failures: read(t, "testdata/failures.txt")}
	larder := filepath.Join(r.dir, "kube-apiserver")
	must(t, proctest.Build(larder, "../../cmd/larder"))
	must(t, os.Symlink(larder, filepath.Join(r.dir, "etcd")))
	r.overlay, r.kubernetes = overlay(t, r.dir)
	r.modfile(t)
	r.env = append(os.Environ(), "PATH="+r.dir+":"+os.Getenv("PATH"), "TMPDIR="+t.TempDir(), "KAS="+cmp.Or(*program, larder), "KUBE_INTEGRATION_ETCD_URL="+r.startEtcd(t))
	if *logs != "" {
		must(t, os.MkdirAll(*logs, 0o755))
	}
	selected := regexp.MustCompile("^(" + *packages + ")$")
	for _, line := range read(t, "testdata/packages.txt") {
		if p := line[0]; *packages != "" && selected.MatchString(p) || *packages == "" && len(line) > 1 {
			t.Run(p, func(t *testing.T) { r.run(t, p) })
		}
	}
}

// read returns the fields of each line of a file, except comments.
func read(t *testing.T, file string) (lines [][]string) {
	text, err := os.ReadFile(file)
	must(t, err)
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 0 && fields[0] != "#" {
			lines = append(lines, fields)
		}
	}
	return lines
}

// runner builds and runs packages.
type runner struct {
	dir        string // of the built programs
	overlay    string
	kubernetes string // the directory of the module
	env        []string
	failures   [][]string
}

// modfile makes a copy of go.mod, to which the build may add modules that only upstream's tests import.
func (r *runner) modfile(t *testing.T) {
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile("../../" + name)
		must(t, err)
		must(t, os.WriteFile(filepath.Join(r.dir, name), text, 0o600))
	}
	api := command(t, "go", "list", "-m", "-f", "{{.Version}}", "k8s.io/api")
	command(t, "go", "mod", "edit", "-require=k8s.io/sample-apiserver@"+api, filepath.Join(r.dir, "go.mod"))
}

// startEtcd runs an etcd for all tests and returns its URL.
func (r *runner) startEtcd(t *testing.T) string {
	client, peer := fmt.Sprintf("http://127.0.0.1:%d", proctest.Port(t)), fmt.Sprintf("http://127.0.0.1:%d", proctest.Port(t))
	p := proctest.New(t, "etcd", func() *exec.Cmd {
		return exec.Command(filepath.Join(r.dir, "etcd"), "--data-dir", filepath.Join(r.dir, "data"), "--unsafe-no-fsync",
			"--quota-backend-bytes=8589934592", "--listen-client-urls", client, "--advertise-client-urls", client,
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer)
	})
	must(t, p.Start())
	proctest.Eventually(t, "etcd serves", func() error {
		resp, err := http.Get(client + "/health")
		if err != nil {
			return err
		}
		return resp.Body.Close()
	})
	return client
}

// run runs the tests of one package.
func (r *runner) run(t *testing.T, name string) {
	binary := filepath.Join(r.dir, strings.ReplaceAll(name, "/", "_")+".test")
	build := exec.Command("go", "test", "-c", "-vet=off", "-ldflags=-w", "-mod=mod", "-modfile", filepath.Join(r.dir, "go.mod"),
		"-overlay", r.overlay, "-o", binary, home+"/test/integration/"+name)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	defer os.Remove(binary)
	where := filepath.Join(r.dir, "run", name)
	defer os.RemoveAll(where) // packages below this one have files in it
	must(t, os.CopyFS(where, os.DirFS(filepath.Join(r.kubernetes, "test/integration", name))))
	scripts, err := filepath.Glob(filepath.Join(where, "testdata/*.sh"))
	must(t, err)
	for _, s := range scripts { // files in the module cache are not executable
		if !strings.Contains(s, "not-executable") {
			must(t, os.Chmod(s, 0o755))
		}
	}
	var out bytes.Buffer
	results := r.execute(t, binary, where, &out)
	if *logs != "" {
		must(t, os.WriteFile(filepath.Join(*logs, strings.ReplaceAll(name, "/", "_")+".log"), out.Bytes(), 0o600))
	}
	counts := map[string]int{}
	for test, result := range results {
		counts[result]++
		expected := slices.IndexFunc(r.failures, func(f []string) bool { return f[0] == name && f[1] == test })
		switch {
		case result != "FAIL" && expected >= 0 && result != "SKIP":
			t.Logf("%s passes, although testdata/failures.txt lists it", test)
		case result == "FAIL" && expected >= 0:
			counts["expected"]++
		case result == "FAIL":
			t.Errorf("%s fails", test)
		}
	}
	t.Logf("%d passed, %d failed (%d of these are in testdata/failures.txt), %d were skipped", counts["PASS"], counts["FAIL"], counts["expected"], counts["SKIP"])
	if t.Failed() && *logs == "" {
		t.Logf("%s", out.Bytes())
	}
}

var verdict = regexp.MustCompile(`^(?:=== RUN   |--- (PASS|FAIL|SKIP): )([^/\s]+)(?: \(.*)?$`)

// execute runs a binary of tests in a directory. If a test ends the process, it runs the binary again without the
// tests that ran. It returns how each top-level test ended.
func (r *runner) execute(t *testing.T, binary, where string, out *bytes.Buffer) map[string]string {
	results := map[string]string{}
	for {
		ran := slices.Collect(maps.Keys(results))
		if os.Geteuid() != 0 {
			ran = append(ran, ".*Peer.*") // only root can set a process's host name
		}
		args := []string{"-test.v", "-test.timeout=40m", "-test.run", *tests}
		if len(ran) > 0 {
			args = append(args, "-test.skip", "^("+strings.Join(ran, "|")+")$")
		}
		cmd := exec.CommandContext(t.Context(), binary, args...)
		cmd.Dir, cmd.Env = where, r.env
		text, err := cmd.CombinedOutput()
		out.Write(text)
		before := len(results)
		for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
			if m := verdict.FindStringSubmatch(lines.Text()); m != nil && results[m[2]] != m[1] && (m[1] != "" || results[m[2]] == "") {
				results[m[2]] = cmp.Or(m[1], "FAIL") // a test that has started fails unless the output has its end
			}
		}
		var failed *exec.ExitError
		if err != nil && !errors.As(err, &failed) {
			t.Fatal(err)
		}
		if len(results) == before || !bytes.Contains(text, []byte("\npanic: ")) {
			return results
		}
	}
}
