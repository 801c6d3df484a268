package e2e_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/larder-io/larder/internal/proctest"
)

// against is the kubeconfig of another server for the kubectl scenarios. With -rewrite, they record its responses.
var against = flag.String("against", "", "kubeconfig of the server to run the kubectl scenarios against")

// program is the package that the tests build and start.
const program = "github.com/larder-io/larder/cmd/larder"

// smoke matches the tests that run with -short: the kubectl scenarios, the names of the program, and informers.
const smoke = "^(TestKubectl|TestNames|TestInformer.*)$"

// binaries are the programs under test, built once.
var binaries struct{ larder, kubectl string }

func TestMain(m *testing.M) {
	proctest.ShortTemp()
	flag.Parse()
	if run := flag.Lookup("test.run"); testing.Short() && run.Value.String() == "" {
		run.Value.Set(smoke)
	}
	// Parallel tests mostly wait, some for a minute or two until servers poll KMS plugins.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "larder-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binaries.larder, binaries.kubectl = filepath.Join(dir, "larder"), filepath.Join(dir, "kubectl")
	const stamp = "-X k8s.io/client-go/pkg/version.gitVersion=v1.36.3 -X k8s.io/component-base/version.gitVersion=v1.36.3"
	err = proctest.Build(binaries.kubectl, "k8s.io/kubernetes/cmd/kubectl", "-ldflags", stamp)
	if err == nil && *against == "" {
		err = proctest.Build(binaries.larder, program)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}
