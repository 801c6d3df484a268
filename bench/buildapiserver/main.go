// Command buildapiserver builds an unmodified kube-apiserver for comparisons with Larder.
//
// It is a separate module, so that its dependencies have the versions of the Kubernetes release. It builds
// the published module k8s.io/kubernetes at the version in go.mod, and sets the version that the server
// reports.
//
//	cd bench/buildapiserver && go run . -o DIR
//
// writes DIR/kube-apiserver and prints its path. The first build takes minutes. With -registered it
// builds DIR/registered, a kube-apiserver that writes the names of its registered metrics.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const (
	apiserver         = "k8s.io/kubernetes/cmd/kube-apiserver"
	registeredMetrics = "github.com/larder-io/larder/bench/buildapiserver/registered"
)

func main() {
	dir := flag.String("o", ".", "directory to write kube-apiserver to")
	registered := flag.Bool("registered", false, "build the server that writes the names of its registered metrics")
	flag.Parse()
	program := apiserver
	if *registered {
		program = registeredMetrics
	}
	if err := run(*dir, program, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(dir, program string, out io.Writer) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	version, err := command("list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes")
	if err != nil {
		return err
	}
	file := filepath.Join(dir, filepath.Base(program))
	if _, err := command("build", "-ldflags", versionFlags(version), "-o", file, program); err != nil {
		return err
	}
	fmt.Fprintln(out, file)
	return nil
}

// versionFlags returns the linker flags of the release's own build (kubernetes hack/lib/version.sh). The commit
// and the date are unknown.
func versionFlags(version string) string {
	numbers := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	var flags []string
	for _, set := range [][2]string{
		{"gitVersion", version}, {"gitMajor", numbers[0]}, {"gitMinor", numbers[1]},
		{"gitTreeState", "clean"}, {"gitCommit", "unknown"}, {"buildDate", "1970-01-01T00:00:00Z"},
	} {
		flags = append(flags, "-X k8s.io/component-base/version."+set[0]+"="+set[1])
	}
	return strings.Join(flags, " ")
}

// command runs the go command and returns its standard output.
func command(args ...string) (string, error) {
	var out, stderr bytes.Buffer
	cmd := exec.Command("go", args...)
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", args[0], err, stderr.String())
	}
	return strings.TrimSpace(out.String()), nil
}
