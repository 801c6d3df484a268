package e2e_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/larder-io/larder/internal/proctest"
)

// kubectl runs kubectl commands against one server, in one namespace.
type kubectl struct {
	kubeconfig, namespace, home string

	editor string // the program that `kubectl edit` starts
}

func newKubectl(t *testing.T, kubeconfig, namespace string) *kubectl {
	t.Helper()
	return &kubectl{kubeconfig: kubeconfig, namespace: namespace, home: t.TempDir()}
}

func (k *kubectl) command(args ...string) *exec.Cmd {
	args = append([]string{"--namespace", k.namespace}, args...)
	cmd := exec.Command(binaries.kubectl, args...)
	cmd.Env = append(os.Environ(), "HOME="+k.home, "KUBECONFIG="+k.kubeconfig, "KUBE_EDITOR="+k.editor)
	return cmd
}

// run runs a command and returns its output, and its exit status if it failed.
func (k *kubectl) run(stdin string, args ...string) string {
	var out bytes.Buffer
	cmd := k.command(args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &out
	if err := cmd.Run(); err != nil {
		fmt.Fprintf(&out, "(%v)\n", err)
	}
	return out.String()
}

// must runs a command that must succeed.
func (k *kubectl) must(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	out := k.run(stdin, args...)
	if strings.HasSuffix(out, ")\n") && strings.Contains(out, "(exit status") {
		t.Fatalf("kubectl %q: %s", args, out)
	}
	return out
}

// longWait is a timeout for commands that by default wait half a minute, which is too short on a slow machine.
const longWait = "--timeout=300s"

// try runs a command. If it fails, try returns its output as an error.
func (k *kubectl) try(args ...string) error {
	out, err := k.command(args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("kubectl %q: %w: %s", args, err, out)
	}
	return nil
}

// TestKubectl runs the scenarios of testdata/kubectl, each in a namespace named after its file. A scenario has kubectl
// command lines, their input and their output. Output that varies between runs is masked.
func TestKubectl(t *testing.T) {
	kubeconfig := *against
	if kubeconfig == "" {
		kubeconfig = serve(t, "--unsafe-no-fsync").kubeconfig()
	}
	datadriven.Walk(t, "testdata/kubectl", func(t *testing.T, path string) {
		namespace := strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
		k := newKubectl(t, kubeconfig, namespace)
		k.must(t, "", "create", "namespace", namespace)
		// Servers that inject the default service account into pods require it to exist.
		k.must(t, "", "create", "serviceaccount", "default")
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			line, rest, _ := strings.Cut(d.Input, "\n")
			switch d.Cmd {
			case "kubectl":
				return mask(k.run(rest, split(line)...))
			case "edit": // sed, as the editor, executes the lines after the command line
				k.editor = "sed -i " + rest
				return mask(k.run("", split("edit "+line)...))
			}
			d.Fatalf(t, "unknown command %q", d.Cmd)
			return ""
		})
		k.must(t, "", "delete", "namespace", namespace, "--wait=false")
	})
}

// split splits a command line at spaces outside single quotes.
func split(line string) []string {
	var args []string
	for i, part := range strings.Split(line, "'") {
		switch {
		case i%2 == 0:
			args = append(args, strings.Fields(part)...)
		case strings.HasSuffix(strings.Split(line, "'")[i-1], "="):
			args[len(args)-1] += part
		default:
			args = append(args, part)
		}
	}
	return args
}

// masks replaces text that varies between runs.
var masks = []struct {
	what *regexp.Regexp
	by   string
}{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "<uid>"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`), "<time>"},
	{regexp.MustCompile(`(resourceVersion"?: )"\d+"`), `$1"<rv>"`},
	{regexp.MustCompile(`\b10\.0\.0\.\d+\b`), "<ip>"},
	{regexp.MustCompile(`\b3[0-2]\d{3}\b`), "<port>"},
	{regexp.MustCompile(`\b(\d+[dhms])+\b`), "<age>"},
	{regexp.MustCompile(`("serverAddress":)"[^"]+"`), `$1"<address>"`},
	{regexp.MustCompile(`(\S)  +`), "$1  "}, // the width of columns depends on masked text
	{regexp.MustCompile(`(?m) +$`), ""},
}

func mask(out string) string {
	for _, m := range masks {
		out = m.what.ReplaceAllString(out, m.by)
	}
	return out
}

// TestKubectlWatchPrintsEachChange checks that -w prints existing objects, and then one line for each change, also in
// Tables.
func TestKubectlWatchPrintsEachChange(t *testing.T) {
	p := serve(t, "--unsafe-no-fsync")
	k := newKubectl(t, p.kubeconfig(), "default")
	k.must(t, "", "create", "configmap", "first")
	watch := proctest.New(t, "kubectl", func() *exec.Cmd {
		return k.command("get", "configmaps", "-w", "--output-watch-events", "--field-selector", "metadata.name!=kube-root-ca.crt")
	})
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	printed := func(lines string) func() error {
		return func() error {
			if got := mask(watch.Output()); got != lines {
				return fmt.Errorf("printed %q, want %q", got, lines)
			}
			return nil
		}
	}
	want := "EVENT  NAME  DATA  AGE\nADDED  first  0  <age>\n"
	watch.Eventually(t, "began", printed(want))
	for _, step := range []struct {
		args []string
		line string
	}{
		{[]string{"create", "configmap", "second", "--from-literal=a=b"}, "ADDED  second  1  <age>\n"},
		{[]string{"patch", "configmap", "first", "--type=merge", `--patch={"data":{"a":"b","c":"d"}}`}, "MODIFIED  first  2  <age>\n"},
		{[]string{"delete", "configmap", "second"}, "DELETED  second  1  <age>\n"},
	} {
		k.must(t, "", step.args...)
		want += step.line
		watch.Eventually(t, "prints the change", printed(want))
	}
}
