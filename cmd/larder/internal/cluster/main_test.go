package cluster

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/larder-io/larder/cmd/larder/internal/cluster/programs"
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
	dir, err := os.MkdirTemp("", "larder-cluster-")
	if err == nil {
		err = build(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.RemoveAll(dir)
		os.Exit(1)
	}
	// Tests wait for a cluster most of the time, which more of them can do at once than there
	// are processors.
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// build builds what was not given.
func build(dir string) error {
	if *larder == "" {
		*larder = filepath.Join(dir, "larder")
		if err := proctest.Build(*larder, "github.com/larder-io/larder/cmd/larder"); err != nil {
			return err
		}
	}
	if *others == "" {
		cache, err := programs.CacheDir()
		if err != nil {
			return err
		}
		*others, err = programs.Build(context.Background(), cache, func(what string) { fmt.Println(what) })
		return err
	}
	return nil
}
