package cluster

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/larder-io/larder/cmd/larder/internal/cluster/programs"
	"github.com/larder-io/larder/internal/e2e/e2etest"
	"github.com/larder-io/larder/internal/proctest"
)

var (
	larder = flag.String("larder", "", "program to run clusters with; built if not given")
	others = flag.String("programs", "", "directory of the other programs; built if not given, and kept where `larder cluster` keeps them")
)

func TestMain(m *testing.M) {
	proctest.ShortTemp()
	flag.Parse()
	if testing.Short() {
		fmt.Fprintln(os.Stderr, "skipped with -short: builds and runs whole clusters")
		return
	}
	remove, err := e2etest.Build(larder)
	if err == nil && *others == "" {
		*others, err = programs.Build(context.Background(), os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	// Tests mostly wait for a cluster, so more of them than processors can run at once.
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(proctest.Settling{TestingM: m}, goleak.Cleanup(func(code int) {
		remove()
		os.Exit(code)
	}))
}
