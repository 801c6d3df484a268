// Command buildapiserver builds an unmodified kube-apiserver for comparisons with Larder.
//
// It is a separate module, so that its dependencies have the versions of the Kubernetes release. It builds
// the published module k8s.io/kubernetes at the version in go.mod, and sets the version that the server
// reports.
//
//	cd bench/buildapiserver && go run . -o DIR
//
// writes DIR/kube-apiserver and prints its path. The first build takes minutes.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func main() {
	dir := flag.String("o", ".", "directory to write kube-apiserver to")
	flag.Parse()
	file, err := build(*dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(file)
}

// build builds kube-apiserver in dir and returns its path.
func build(dir string) (string, error) {
	file, err := filepath.Abs(filepath.Join(dir, "kube-apiserver"))
	if err != nil {
		return "", err
	}
	version, err := goCommand("list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes")
	if err != nil {
		return "", err
	}
	_, err = goCommand("build", "-ldflags", versionFlags(version), "-o", file, "k8s.io/kubernetes/cmd/kube-apiserver")
	return file, err
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

// goCommand runs the go command and returns its standard output.
func goCommand(args ...string) (string, error) {
	cmd := exec.Command("go", args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w", args[0], err)
	}
	return strings.TrimSpace(string(out)), nil
}
