// Package servertest runs a Larder server in a test binary that its own test has started again, so that
// tests can kill servers.
package servertest

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"github.com/larder-io/larder/cmd/larder/internal/server"
)

// Config is the configuration of a process, which receives it as JSON.
type Config struct {
	Dir    string // of the server's files
	Tokens string // file with the clients' tokens
	Port   int    // on the loopback address
	// Advertise is the address to publish; "" publishes none.
	Advertise string
	Stores    []string // of an etcd cluster; none embeds one
	Modes     []string // of authorization; none allows everything
	// Compaction is the length of the history that is kept; 0 keeps all.
	Compaction time.Duration
	CacheBytes int64  // beside present objects; 0 is the server's default
	Gates      string // of features, as --feature-gates has them
	Faults     bool   // serves faults.Path
}

// Run serves with raw, a Config as JSON, until a signal ends the process. A test binary that was started
// again by its own test calls it in TestMain.
func Run(raw string) error {
	var told Config
	if err := json.Unmarshal([]byte(raw), &told); err != nil {
		return fmt.Errorf("servertest: %w", err)
	}
	if err := utilfeature.DefaultMutableFeatureGate.Set(told.Gates); err != nil {
		return fmt.Errorf("servertest: %w", err)
	}
	config := server.Default()
	config.DataDir = told.Dir
	config.SecureServing.BindPort, config.GenericServerRunOptions.AdvertiseAddress = told.Port, net.ParseIP(told.Advertise)
	config.Etcd.StorageConfig.Transport.ServerList = told.Stores
	config.Etcd.StorageConfig.CompactionInterval = told.Compaction
	config.Store.UnsafeNoFsync = true // the machine does not die in these tests
	if told.CacheBytes > 0 {
		config.CacheBytes = told.CacheBytes
	}
	config.Authentication.TokenFile.TokenFile = told.Tokens
	config.Authorization.Modes = told.Modes
	config.Faults, config.Progress = told.Faults, os.Stdout
	s, err := server.New(config)
	if err != nil {
		return fmt.Errorf("servertest: %w", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return s.Run(ctx)
}
