package embedded

import (
	"cmp"
	"context"
	"errors"
	"expvar"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/pkg/v3/runtime"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy/adapter"
	"go.etcd.io/etcd/server/v3/storage/datadir"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc"

	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/internal/zaplog"
)

// MemberName and MemberPeer are the server's member name and peer URL. The URL is etcd's default, and is not listened
// on.
const (
	MemberName = "larder"
	MemberPeer = "http://localhost:2380"
)

const (
	// defaultQuota is the maximum that etcd recommends.
	defaultQuota = 8 << 30
	// defragThreshold is the minimum number of megabytes that a defragmentation at start must free.
	defragThreshold = 256
	// reservedFiles is the number of file descriptors that etcd reserves for itself (etcd server/embed/etcd.go).
	reservedFiles = 150
	// socketPathMax is the longest path of a unix socket on every platform.
	socketPathMax = 103
)

// Config configures an etcd in this process. Dir is required.
type Config struct {
	kv.StoreConfig
	// Dir is the data directory, created if missing. One process may use it.
	Dir string
	// SnapshotCount is the number of writes after which etcd makes a snapshot and cuts its log; 0 is 1,000.
	SnapshotCount uint64
	// QuotaBytes limits the size of the database. When it is reached, writes are refused until
	// there is room again; 0 is 8 GiB.
	QuotaBytes int64
	// DefragmentInterval is how often the database is defragmented if most of it is free. With 0 it is
	// defragmented only when it has reached its quota.
	DefragmentInterval time.Duration
	// UnsafeNoFsync acknowledges writes before they are on disk. They survive a crash of this process, but not of the
	// machine.
	UnsafeNoFsync bool
	// Fatal is called on any goroutine when the running server cannot write to disk, because the disk is full or a file
	// is damaged. It must end the process; nil panics.
	Fatal func(error)
}

// ReservedFiles returns how many file descriptors etcd leaves to the rest of this process; 0 if they have no limit. It
// returns an error if the limit is too low for etcd.
func ReservedFiles() (int, error) {
	limit, err := runtime.FDLimit()
	switch {
	case err != nil || limit > math.MaxInt: // systems other than Linux
		return 0, nil
	case limit <= reservedFiles:
		return 0, fmt.Errorf("embedded: this process may open %d files (ulimit -n), and etcd needs more than %d", limit, reservedFiles)
	}
	return int(limit) - reservedFiles, nil
}

// New returns a store over an etcd server that Run starts in this process.
func New(cfg Config) (*kv.Etcd, error) {
	if cfg.Dir == "" {
		return nil, errors.New("embedded: Config.Dir is missing")
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	return (&opener{cfg: cfg}).store(), nil
}

// opener opens a store, once.
type opener struct {
	cfg    Config
	server *etcdserver.EtcdServer // set by open
}

func (o *opener) store() *kv.Etcd {
	return kv.NewEtcd(kv.EtcdConfig{StoreConfig: o.cfg.StoreConfig, Name: "embedded", Open: o.open})
}

// open locks the directory, starts the server and waits until it can serve.
func (o *opener) open(ctx context.Context, recorder kv.ResponseRecorder) (*kv.Connection, error) {
	config, err := serverConfig(o.cfg)
	if err != nil {
		return nil, err
	}
	config.GRPCAdditionalServerOptions = []grpc.ServerOption{grpc.UnaryInterceptor(recordResponses(recorder))}
	// Without this lock etcd would wait until the other process closes the database.
	lock, err := fileutil.TryLockFile(filepath.Join(config.Dir, "lock"), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("%s is in use: %w", config.Dir, err)
	}
	server, err := startServer(ctx, config)
	if err != nil {
		lock.Close()
		return nil, err
	}
	o.server = server.Server
	client := v3client.New(o.server)
	own := newLocalKV(adapter.KvServerToKvClient(v3rpc.NewQuotaKVServer(o.server)), o.server.Backend(), newWriteLog(o.server), recorder)
	client.KV = clientv3.NewKVFromKVClient(own, client)
	recorder.Record(&etcdserverpb.ResponseHeader{
		ClusterId: uint64(o.server.Cluster().ID()), RaftTerm: o.server.Term(), Revision: o.server.KV().Rev(),
	})
	return &kv.Connection{
		Client:    client,
		Watch:     adapter.WatchServerToWatchClient(v3rpc.NewWatchServer(o.server)),
		InProcess: true,
		Maintain:  newSpace(o.server, client, o.cfg, recorder).run,
		Size:      func(context.Context) (int64, error) { return o.server.Backend().Size(), nil },
		Recent:    own.recent,
		Failed:    server.Err(),
		Close: func() {
			own.close() // first, because a read of a closed database panics
			client.Close()
			server.Close()
			lock.Close()
		},
	}, nil
}

// errMembers rejects a cluster of several members.
var errMembers = errors.New("an embedded etcd must be the only member of its cluster")

func startServer(ctx context.Context, config *embed.Config) (*embed.Etcd, error) {
	if err := checkDatabase(datadir.ToBackendFileName(config.Dir)); err != nil {
		return nil, err
	}
	if err := removeEmptyLog(config.Dir); err != nil {
		return nil, err
	}
	server, err := startEtcd(config)
	if err != nil {
		return nil, err
	}
	for err == nil {
		select {
		case <-server.Server.ReadyNotify():
			if len(server.Server.Cluster().Members()) == 1 {
				return server, nil
			}
			err = fmt.Errorf("%s: %w", config.Dir, errMembers)
		case <-time.After(2 * time.Millisecond):
			err = elect(ctx, server.Server)
		case err = <-server.Err():
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	server.Server.HardStop() // Close waits for the goroutines that serve clients, which wait until the server is ready or stops
	server.Close()
	return nil, err
}

// elect makes a server that is the only voter and has no leader start an election at once, instead of after the
// election timeout. It sends the message by which a leader transfers its leadership. It returns an error if there is no
// voter, because then there can be no election. Raft must first have applied all committed entries. Otherwise it
// panics, because it looks for membership changes in entries that the server has already dropped. etcd publishes raft's
// status of the last started server as an expvar. A server that has just been restored has no applied index yet.
func elect(ctx context.Context, server *etcdserver.EtcdServer) error {
	read := func() raft.Status {
		status, _ := expvar.Get("raft.status").(expvar.Func).Value().(raft.Status)
		return status
	}
	status := read()
	id, applied := uint64(server.MemberID()), server.AppliedIndex()
	done := status.Applied == status.GetCommit() && applied == server.CommittedIndex() && (applied == 0 || applied == status.Applied)
	if !done || server.Leader() != 0 {
		return nil
	}
	status = read() // the first may be older than the last applied entry
	switch voters := status.Config.Voters.IDs(); {
	case status.ID == id && len(voters) == 0: // the ID is 0 once the server has stopped
		return fmt.Errorf("etcd cannot use %s: its log adds no member that can vote", server.Cfg.DataDir)
	case maps.Equal(voters, map[uint64]struct{}{id: {}}):
		_ = server.Process(ctx, &raftpb.Message{Type: raftpb.MsgTimeoutNow.Enum(), From: &id, To: &id}) // the next tick tries again
	}
	return nil
}

// startEtcd starts the server. etcd panics if it cannot create or read its files.
func startEtcd(config *embed.Config) (server *embed.Etcd, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("etcd cannot use %s: %v", config.Dir, p)
		}
	}()
	return embed.StartEtcd(config)
}

func serverConfig(cfg Config) (*embed.Config, error) {
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	config := embed.NewConfig()
	config.Name = MemberName
	config.Dir = dir
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	config.ListenPeerUrls = nil // there are no other members
	config.EnableGRPCGateway = false
	config.TickMs, config.ElectionMs = 200, 1000 // elect does not wait for them, and each tick costs an idle server CPU (T4)
	config.SnapshotCount = cmp.Or(cfg.SnapshotCount, snapshotCount)
	config.SnapshotCatchUpEntries = 1 // no follower needs entries that are applied; 0 would be etcd's default
	config.QuotaBackendBytes = cmp.Or(cfg.QuotaBytes, defaultQuota)
	config.UnsafeNoFsync = cfg.UnsafeNoFsync
	config.BootstrapDefragThresholdMegabytes = defragThreshold
	hook := fatalHook{cfg.Fatal}
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zaplog.New(cfg.Logger, zapcore.WarnLevel, zap.WithPanicHook(hook), zap.WithFatalHook(hook)))
	return config, listenOnSocket(config, cfg.Logger)
}

// listenOnSocket makes the server listen on a unix socket that only this user can reach. If the path is too long for a
// socket address, the store works without the socket, but etcdctl cannot be used.
func listenOnSocket(config *embed.Config, logger *slog.Logger) error {
	config.ListenClientUrls = nil
	socket, err := Socket(config.Dir)
	if err != nil {
		logger.Warn("etcd cannot listen on a unix socket", "error", err)
		return nil
	}
	dir := filepath.Dir(socket.Path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o700); err != nil { // it may have existed
		return fmt.Errorf("protect %s: %w", dir, err)
	}
	config.ListenClientUrls = []url.URL{*socket}
	config.AdvertiseClientUrls = []url.URL{*socket}
	return nil
}

// Socket returns the URL of the unix socket in a data directory. It fails if the path is too long for a socket address.
func Socket(dir string) (*url.URL, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "sock", "etcd")
	if len(path) > socketPathMax {
		return nil, fmt.Errorf("embedded: %s is longer than the %d bytes that a socket's path may have", path, socketPathMax)
	}
	return &url.URL{Scheme: "unix", Path: path}, nil
}
