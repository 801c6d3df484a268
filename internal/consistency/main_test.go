package consistency

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
	"github.com/larder-io/larder/kv/kvtest"
)

var (
	duration = flag.Duration("duration", 15*time.Second, "how long the nemesis acts")
	seed     = flag.Int64("seed", 0, "of the faults and the clients; 0 takes one from the clock")
)

// The variables make the test binary be another process, configured by their value.
const (
	memberVariable = "LARDER_CONSISTENCY_MEMBER"
	larderVariable = "LARDER_CONSISTENCY_LARDER"
)

func TestMain(m *testing.M) {
	var err error
	if raw := os.Getenv(memberVariable); raw != "" {
		err = kvtest.RunMember(raw)
	} else if raw := os.Getenv(larderVariable); raw != "" {
		err = playLarder(raw)
	} else {
		goleak.VerifyTestMain(m)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// larderConfig is what a Larder process is told.
type larderConfig struct {
	Dir     string
	Tokens  string // file with the clients' token
	Port    int
	Servers []string
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
	config.Store.Servers = told.Servers
	config.Store.UnsafeNoFsync = true   // the machine does not die in these tests
	config.Store.CompactionInterval = 0 // the nemesis compacts
	config.Progress = os.Stdout
	config.Authentication.TokenFile = told.Tokens
	s, err := server.New(config)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return s.Run(ctx)
}
