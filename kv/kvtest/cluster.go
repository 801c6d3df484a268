package kvtest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv"
)

// Member is a process that runs a member of an etcd cluster.
type Member struct {
	*proctest.Process
	Config MemberConfig
}

// StartCluster starts a cluster whose members are processes of the test binary and
// waits until they serve. variable is the environment variable that makes TestMain call [RunMember].
// adjust, if not nil, may change the members' configurations.
func StartCluster(t testing.TB, variable string, size int, adjust func([]MemberConfig)) []*Member {
	t.Helper()
	address := func() string { return "http://127.0.0.1:" + strconv.Itoa(proctest.Port(t)) }
	configs := make([]MemberConfig, size)
	for i := range configs {
		name := "m" + strconv.Itoa(i)
		configs[i] = MemberConfig{
			Name: name, Dir: filepath.Join(t.TempDir(), name), Peer: address(), Client: address(), HeartbeatMs: 50, VoteMs: 500,
		}
	}
	if adjust != nil {
		adjust(configs)
	}
	var peers []string
	for _, config := range configs {
		peers = append(peers, config.Name+"="+config.Peer)
	}
	members := make([]*Member, size)
	for i, config := range configs {
		config.Cluster = strings.Join(peers, ",")
		members[i] = &Member{Process: proctest.New(t, "member "+config.Name, proctest.Role(t, variable, config)), Config: config}
		if err := members[i].Start(); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range members {
		m.AwaitReady(t)
	}
	return members
}

// LengthenElectionTimeout is an argument of [StartCluster] for tests in which the leader survives. Otherwise the
// members of a busy machine may elect another leader, and running requests fail. etcd abandons a request after 5 s plus
// twice the election timeout, so large writes also need it.
func LengthenElectionTimeout(configs []MemberConfig) {
	for i := range configs {
		configs[i].HeartbeatMs, configs[i].VoteMs = 100, 3000
	}
}

// AwaitReady waits until the member serves.
func (m *Member) AwaitReady(t testing.TB) {
	t.Helper()
	m.Await(t, memberReady)
}

// URLs returns the members' client URLs.
func URLs(members []*Member) []string {
	urls := make([]string, len(members))
	for i, m := range members {
		urls[i] = m.Config.Client
	}
	return urls
}

// Client is an etcd client that bypasses the servers under test.
type Client struct{ *clientv3.Client }

// NewClient returns a client of a cluster. It is closed at the end of the test.
func NewClient(t testing.TB, urls []string) *Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: urls, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return &Client{client}
}

// Leader returns the client URL of the member that leads. It skips members that do not respond.
func (c *Client) Leader(ctx context.Context) (string, error) {
	for _, member := range c.Endpoints() {
		once, cancel := context.WithTimeout(ctx, time.Second)
		status, err := c.Status(once, member)
		cancel()
		if err == nil && status.Leader == status.Header.MemberId {
			return member, nil
		}
	}
	return "", errors.New("kvtest: no member leads")
}

// IDs returns the members' ids by their names.
func (c *Client) IDs(ctx context.Context) (map[string]uint64, error) {
	list, err := c.MemberList(ctx)
	if err != nil {
		return nil, fmt.Errorf("kvtest: members: %w", err)
	}
	ids := make(map[string]uint64)
	for _, member := range list.Members {
		ids[member.Name] = member.ID
	}
	return ids, nil
}

// Compacted returns the oldest revision that the cluster can still be read at.
func (c *Client) Compacted(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for response := range c.Watch(ctx, "\x00", clientv3.WithRev(1), clientv3.WithCreatedNotify()) {
		if response.CompactRevision > 0 {
			return response.CompactRevision, nil
		}
		if err := response.Err(); err != nil {
			return 0, fmt.Errorf("kvtest: compacted: %w", err)
		}
		if !response.Created {
			return 1, nil
		}
	}
	return 0, fmt.Errorf("kvtest: compacted: %w", ctx.Err())
}

// Change is a part of a transaction.
type Change struct {
	Key        string
	IfRevision int64  // the key's last revision
	Value      []byte // nil deletes
}

// Transact makes all changes in one revision, which it returns, or none if one of the keys has another revision. After
// an error the outcome is unknown.
func (c *Client) Transact(ctx context.Context, changes []Change) (revision int64, committed bool, err error) {
	var conditions []clientv3.Cmp
	var ops []clientv3.Op
	for _, change := range changes {
		conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(change.Key), "=", change.IfRevision))
		if change.Value == nil {
			ops = append(ops, clientv3.OpDelete(change.Key))
		} else {
			ops = append(ops, clientv3.OpPut(change.Key, string(change.Value)))
		}
	}
	response, err := c.Txn(ctx).If(conditions...).Then(ops...).Commit()
	if err != nil {
		return 0, false, fmt.Errorf("kvtest: transact: %w", err)
	}
	return response.Header.Revision, response.Succeeded, nil
}

// Items returns the items under a prefix.
func (c *Client) Items(ctx context.Context, prefix string) ([]kv.Item, error) {
	response, err := c.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, fmt.Errorf("kvtest: items: %w", err)
	}
	items := make([]kv.Item, 0, len(response.Kvs))
	for _, item := range response.Kvs {
		items = append(items, kv.Item{
			Key: string(item.Key), Value: item.Value, Revision: item.ModRevision, CreateRevision: item.CreateRevision, Lease: item.Lease,
		})
	}
	return items, nil
}

// MemberConfig configures a member of an etcd cluster. The process gets it as JSON.
type MemberConfig struct {
	Name, Dir    string
	Client, Peer string // URLs
	// PeerListen is the URL of the peer listener, if not Peer: a test may put a proxy
	// between the members.
	PeerListen          string
	Cluster             string // "name=peer URL" of all members, separated by commas
	CA, Cert, Key       string // of the client listener
	HeartbeatMs, VoteMs uint
	// CatchUp is how many entries a member may be behind before it gets a snapshot; 0 is etcd's default.
	CatchUp uint64
}

// memberReady is the line that a member prints once it serves.
const memberReady = "member is ready"

// RunMember runs the member that raw, a MemberConfig as JSON, describes, until the process is killed or the server
// fails. A test starts its own binary again, whose TestMain calls RunMember. So members are processes that a test can
// kill, stop and start.
func RunMember(raw string) error {
	var cfg MemberConfig
	if err := json.Unmarshal([]byte(raw), &cfg); err != nil {
		return fmt.Errorf("kvtest: member: %w", err)
	}
	urls := func(url string) types.URLs { return types.MustNewURLs([]string{url}) }
	config := embed.NewConfig()
	config.Name, config.Dir = cfg.Name, cfg.Dir
	config.ListenClientUrls, config.AdvertiseClientUrls = urls(cfg.Client), urls(cfg.Client)
	config.ListenPeerUrls, config.AdvertisePeerUrls = urls(cmp.Or(cfg.PeerListen, cfg.Peer)), urls(cfg.Peer)
	config.InitialCluster = cfg.Cluster
	config.TickMs, config.ElectionMs = cfg.HeartbeatMs, cfg.VoteMs
	config.UnsafeNoFsync = true // tests do not crash the machine
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
	fmt.Fprintln(os.Stdout, memberReady) // StartCluster waits for it
	return fmt.Errorf("kvtest: member: %w", <-server.Err())
}
