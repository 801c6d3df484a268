package difftest

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/larder-io/larder/internal/server"
)

var (
	stockBinary = flag.String("stock", "", "kube-apiserver to compare with; none compares with recorded answers")
	rewrite     = flag.Bool("rewrite", false, "record the answers of -stock")
	only        = flag.String("only", "", "regular expression: ask only the requests whose name it matches")
)

// roleVariable makes the test binary be a Larder server, configured by its value.
const roleVariable = "LARDER_DIFFTEST_SERVER"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		if err := playLarder(role); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// larderConfig is what a server process is told.
type larderConfig struct {
	Dir, Tokens string
	Port        int
	Compaction  time.Duration
}

// playLarder serves until it is told to end.
func playLarder(raw string) error {
	var told larderConfig
	if err := json.Unmarshal([]byte(raw), &told); err != nil {
		return err
	}
	config := server.Default()
	config.DataDir = told.Dir
	config.Serving.BindAddress, config.Serving.Port = net.IPv4(127, 0, 0, 1), told.Port
	config.Store.CompactionInterval = told.Compaction
	config.Store.UnsafeNoFsync = true // the machine does not die in these tests
	config.Authentication.TokenFile = told.Tokens
	config.AuthorizationModes = []string{"RBAC"}
	config.Progress = os.Stdout
	s, err := server.New(config)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return s.Run(ctx)
}
