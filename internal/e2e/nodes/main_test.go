package nodes

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"

	"github.com/larder-io/larder/internal/e2e/e2etest"
	"github.com/larder-io/larder/internal/proctest"
)

var (
	larder      = flag.String("larder", "", "program to test; built if not given")
	stockBinary = flag.String("stock", "", "kube-apiserver to compare with; without it, recorded responses")
	rewrite     = flag.Bool("rewrite", false, "record the responses of -stock")
)

// kubectlVariable makes the test binary kubectl.
const kubectlVariable = "LARDER_NODES_KUBECTL"

func TestMain(m *testing.M) {
	proctest.ShortTemp()
	if os.Getenv(kubectlVariable) != "" {
		if err := cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()); err != nil {
			util.CheckErr(err) // prints the error and exits
		}
		return
	}
	flag.Parse()
	if testing.Short() {
		fmt.Fprintln(os.Stderr, "skipped with -short: builds a server and runs kubelets for minutes")
		return
	}
	// Tests mostly wait, so more of them than processors can run at once.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	remove, err := e2etest.Build(larder, "-tags", "invariants") // the server checks its invariants
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(proctest.Settling{TestingM: m}, goleak.Cleanup(func(code int) {
		remove()
		os.Exit(code)
	}))
}
