package kvtest

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// MemberConfig says how a process serves as a member of an etcd cluster. It travels
// to the process as JSON.
type MemberConfig struct {
	Name, Dir    string
	Client, Peer string // URLs
	// PeerListen is the URL of the peer listener, if not Peer: a test may put a proxy
	// between the members.
	PeerListen          string
	Cluster             string // "name=peer URL" of all members, separated by commas
	CA, Cert, Key       string // of the client listener
	HeartbeatMs, VoteMs uint
	// CatchUp is how many entries a member may be behind before it is sent a snapshot
	// instead of them; 0 is etcd's default.
	CatchUp uint64
}

// memberReady is the line that a member prints once it serves.
const memberReady = "member is ready"

// RunMember serves as the member that raw, a MemberConfig as JSON, describes, until
// the process is killed or the server fails. A test
// binary that was started again by its own test calls it in TestMain, so that members
// are processes that a test can kill, stop and start.
func RunMember(raw string) error {
	var cfg MemberConfig
	if err := json.Unmarshal([]byte(raw), &cfg); err != nil {
		return fmt.Errorf("kvtest: member: %w", err)
	}
	client, errClient := url.Parse(cfg.Client)
	peer, errPeer := url.Parse(cfg.Peer)
	listen, errListen := url.Parse(cmp.Or(cfg.PeerListen, cfg.Peer))
	if err := errors.Join(errClient, errPeer, errListen); err != nil {
		return fmt.Errorf("kvtest: member: %w", err)
	}
	config := embed.NewConfig()
	config.Name, config.Dir = cfg.Name, cfg.Dir
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{*listen}, []url.URL{*peer}
	config.InitialCluster = cfg.Cluster
	config.TickMs, config.ElectionMs = cfg.HeartbeatMs, cfg.VoteMs
	config.UnsafeNoFsync = true // the machine does not die in these tests
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	if cfg.CatchUp > 0 {
		config.SnapshotCount, config.SnapshotCatchUpEntries = cfg.CatchUp, cfg.CatchUp
	}
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
	fmt.Fprintln(os.Stdout, memberReady) // this process is the member
	return fmt.Errorf("kvtest: member: %w", <-server.Err())
}
