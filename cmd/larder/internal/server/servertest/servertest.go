// Package servertest runs a Larder server in a second process of a test binary, so that tests can kill servers.
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
	Dir    string // data directory
	Tokens string // file with the clients' tokens
	Port   int    // port on the loopback address
	// Advertise is the address to publish; "" publishes none.
	Advertise string
	Stores    []string // URLs of an etcd cluster; empty embeds an etcd
	Modes     []string // authorization modes; empty allows everything
	// Compaction is the compaction interval; 0 disables compaction.
	Compaction time.Duration
	CacheBytes int64  // as server.Config.CacheBytes; 0 means the default
	Gates      string // as in --feature-gates
	Faults     bool   // whether to serve faults.Path
}

// Run serves with raw, a Config as JSON, until SIGTERM. TestMain calls it in the process of the server.
func Run(raw string) error {
	var options Config
	if err := json.Unmarshal([]byte(raw), &options); err != nil {
		return fmt.Errorf("servertest: %w", err)
	}
	if err := utilfeature.DefaultMutableFeatureGate.Set(options.Gates); err != nil {
		return fmt.Errorf("servertest: %w", err)
	}
	config := server.Default()
	config.DataDir = options.Dir
	config.SecureServing.BindPort, config.GenericServerRunOptions.AdvertiseAddress = options.Port, net.ParseIP(options.Advertise)
	config.Etcd.StorageConfig.Transport.ServerList = options.Stores
	config.Etcd.StorageConfig.CompactionInterval = options.Compaction
	config.Store.UnsafeNoFsync = true // the machine does not crash in these tests
	if options.CacheBytes > 0 {
		config.CacheBytes = options.CacheBytes
	}
	config.Authentication.TokenFile.TokenFile = options.Tokens
	config.Authorization.Modes = options.Modes
	config.Faults, config.Progress = options.Faults, os.Stdout
	s, err := server.New(config)
	if err != nil {
		return fmt.Errorf("servertest: %w", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return s.Run(ctx)
}
