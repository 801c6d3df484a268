// Package relaytest runs a relay in a test binary that its own test has started again.
package relaytest

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	netutils "k8s.io/utils/net"

	"github.com/larder-io/larder/cmd/larder/internal/relay"
	"github.com/larder-io/larder/cmd/larder/internal/server"
)

// Config is the configuration of a relay process, which receives it as JSON.
type Config struct {
	Dir             string // of the relay's files
	Upstream, Token string // the URL, and the relay's credential there
	Port            int    // on the loopback address
}

// Run runs the relay that text describes until the process gets SIGTERM. Lists of any size come from its caches.
func Run(text string) error {
	var config Config
	if err := json.Unmarshal([]byte(text), &config); err != nil {
		return fmt.Errorf("relaytest: %w", err)
	}
	kubeconfig := filepath.Join(config.Dir, "upstream.kubeconfig")
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:  map[string]*clientcmdapi.Cluster{"upstream": {Server: config.Upstream, InsecureSkipTLSVerify: true}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"relay": {Token: config.Token}},
		Contexts:  map[string]*clientcmdapi.Context{"upstream": {Cluster: "upstream", AuthInfo: "relay"}}, CurrentContext: "upstream",
	}, kubeconfig)
	if err != nil {
		return fmt.Errorf("relaytest: %w", err)
	}
	secure := options.NewSecureServingOptions()
	secure.BindAddress, secure.BindPort, secure.ServerCert.CertDirectory = netutils.ParseIPSloppy("127.0.0.1"), config.Port, ""
	s, err := relay.New(relay.Config{
		Upstreams: []relay.Upstream{{Kubeconfig: kubeconfig}}, SecureServing: secure, ConsistentFrom: 1, Idle: time.Hour, ServeStale: time.Minute, Version: server.Version(),
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return s.Run(ctx)
}
