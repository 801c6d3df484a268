package kvtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// MemberConfig says how a process serves as a member of an etcd cluster. It travels
// to the process as JSON.
type MemberConfig struct {
	Name, Dir           string
	Client, Peer        string // URLs
	Cluster             string // "name=peer URL" of all members, separated by commas
	CA, Cert, Key       string // of the client listener
	HeartbeatMs, VoteMs uint
}

// RunMember serves as the member that raw, a MemberConfig as JSON, describes, until
// the process is killed or the server fails. It prints "ready" once it serves. A test
// binary that was started again by its own test calls it in TestMain, so that members
// are processes that a test can kill, stop and start.
func RunMember(raw string) error {
	var cfg MemberConfig
	if err := json.Unmarshal([]byte(raw), &cfg); err != nil {
		return fmt.Errorf("kvtest: member: %w", err)
	}
	client, errClient := url.Parse(cfg.Client)
	peer, errPeer := url.Parse(cfg.Peer)
	if err := errors.Join(errClient, errPeer); err != nil {
		return fmt.Errorf("kvtest: member: %w", err)
	}
	config := embed.NewConfig()
	config.Name, config.Dir = cfg.Name, cfg.Dir
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	config.InitialCluster = cfg.Cluster
	config.TickMs, config.ElectionMs = cfg.HeartbeatMs, cfg.VoteMs
	config.UnsafeNoFsync = true // the machine does not die in these tests
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	if cfg.CA != "" {
		config.ClientTLSInfo.TrustedCAFile = cfg.CA
		config.ClientTLSInfo.CertFile, config.ClientTLSInfo.KeyFile = cfg.Cert, cfg.Key
		config.ClientTLSInfo.ClientCertAuth = true
	}
	server, err := embed.StartEtcd(config)
	if err != nil {
		return fmt.Errorf("kvtest: member: %w", err)
	}
	<-server.Server.ReadyNotify()
	fmt.Fprintln(os.Stdout, "ready") // this process is the member
	return fmt.Errorf("kvtest: member: %w", <-server.Err())
}

// Leader returns the client URL, one of urls, of the member that leads. Members that
// do not answer are passed over.
func Leader(ctx context.Context, urls []string) (string, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: urls, Logger: zap.NewNop()})
	if err != nil {
		return "", fmt.Errorf("kvtest: leader: %w", err)
	}
	defer client.Close()
	for _, member := range urls {
		once, cancel := context.WithTimeout(ctx, time.Second)
		status, err := client.Status(once, member)
		cancel()
		if err == nil && status.Leader == status.Header.MemberId {
			return member, nil
		}
	}
	return "", errors.New("kvtest: no member leads")
}

// Compact gives up all history of a cluster before a revision.
func Compact(ctx context.Context, urls []string, revision int64) error {
	client, err := clientv3.New(clientv3.Config{Endpoints: urls, Logger: zap.NewNop()})
	if err != nil {
		return fmt.Errorf("kvtest: compact: %w", err)
	}
	defer client.Close()
	if _, err := client.Compact(ctx, revision); err != nil {
		return fmt.Errorf("kvtest: compact: %w", err)
	}
	return nil
}
