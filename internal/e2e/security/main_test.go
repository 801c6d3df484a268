package security

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/larder-io/larder/internal/e2e/e2etest"
	"github.com/larder-io/larder/internal/proctest"
)

var (
	duration = flag.Duration("duration", 10*time.Second, "how long TestTenantsSeeNoForeignData runs")
	seed     = flag.Int64("seed", 0, "seed of TestTenantsSeeNoForeignData; 0 uses the clock")
	larder   = flag.String("larder", "", "program to attack; built if not given")
)

func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		fmt.Fprintln(os.Stderr, "skipped with -short: builds a server and attacks it for a minute")
		return
	}
	flags := []string{"-tags", "invariants"} // the server checks its invariants
	if proctest.RaceDetector {
		flags = append(flags, "-race")
	}
	remove, err := e2etest.Build(larder, flags...)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(proctest.Settling{TestingM: m}, goleak.Cleanup(func(code int) {
		remove()
		os.Exit(code)
	}))
}
