package security

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/larder-io/larder/internal/proctest"
)

var (
	duration = flag.Duration("duration", 10*time.Second, "how long TestTenantsSeeNoForeignData goes on")
	seed     = flag.Int64("seed", 0, "of what the users do in TestTenantsSeeNoForeignData; 0 takes one from the clock")
	larder   = flag.String("larder", "", "program to attack; built if not given")
)

func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		fmt.Fprintln(os.Stderr, "skipped with -short: builds a server and attacks it for a minute")
		return
	}
	dir, err := os.MkdirTemp("", "larder-security-")
	if err == nil && *larder == "" {
		*larder = filepath.Join(dir, "larder")
		err = build(*larder)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.RemoveAll(dir)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// build builds the server so that it checks itself.
func build(program string) error {
	flags := []string{"-tags", "invariants"}
	if race {
		flags = append(flags, "-race")
	}
	return proctest.Build(program, "github.com/larder-io/larder/cmd/larder", flags...)
}
