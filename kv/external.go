package kv

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/stats"

	"github.com/larder-io/larder/kv/internal/zaplog"
)

// Timeouts of the connection to a cluster. Calls to a hanging member fail only after the keepalive time and timeout,
// which are 30 and 10 s in kube-apiserver (apiserver pkg/storage/storagebackend/factory/etcd3.go). gRPC allows no
// shorter keepaliveTime.
const (
	dialTimeout      = 20 * time.Second
	attemptTimeout   = 3 * time.Second // of the first attempt; later ones may take longer
	keepaliveTime    = 10 * time.Second
	keepaliveTimeout = 5 * time.Second
)

// reconnectDelay is the longest pause between two attempts to connect to a member. gRPC's default of two minutes would
// prolong each outage of the cluster.
const reconnectDelay = 3 * time.Second

// Flow-control windows per stream and connection. Without these, gRPC estimates a window, and sends a ping for each
// response and each event. That is a tenth of the cost of an event (B24).
const (
	streamWindow     = 4 << 20
	connectionWindow = 16 << 20 // the maximum of gRPC's estimate
)

// ExternalConfig configures a store over an etcd cluster.
type ExternalConfig struct {
	StoreConfig
	// Endpoints are the members' client URLs. At least one is required.
	Endpoints []string
	// CAFile, CertFile and KeyFile are PEM files; without them the connection
	// is not encrypted. The certificate is re-read for each connection.
	CAFile, CertFile, KeyFile string
	// Dial connects to a member's host and port; nil connects directly.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Stats observes the calls to members; may be nil. It makes writes more expensive, because etcd's client then sends
	// all of them.
	Stats stats.Handler
}

// NewExternal returns a store over an etcd cluster. Run connects to the cluster.
func NewExternal(cfg ExternalConfig) (*Etcd, error) {
	if len(cfg.Endpoints) == 0 {
		return nil, errors.New("kv: external etcd needs an endpoint")
	}
	if (cfg.CertFile == "") != (cfg.KeyFile == "") {
		return nil, errors.New("kv: external etcd needs both CertFile and KeyFile or neither")
	}
	return NewEtcd(EtcdConfig{
		StoreConfig: cfg.StoreConfig,
		Name:        "external",
		Open: func(ctx context.Context, recorder ResponseRecorder) (*Connection, error) {
			return openExternal(ctx, cfg, recorder.etcd)
		},
	}), nil
}

// openExternal dials the cluster and waits until it responds.
func openExternal(ctx context.Context, cfg ExternalConfig, e *Etcd) (*Connection, error) {
	pauses := backoff.DefaultConfig
	pauses.MaxDelay = reconnectDelay
	config := clientv3.Config{
		Endpoints:            cfg.Endpoints,
		DialTimeout:          dialTimeout,
		DialKeepAliveTime:    keepaliveTime,
		DialKeepAliveTimeout: keepaliveTimeout,
		DialOptions: []grpc.DialOption{
			grpc.WithStaticStreamWindowSize(streamWindow),
			grpc.WithStaticConnWindowSize(connectionWindow),
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: pauses, MinConnectTimeout: dialTimeout}),
		},
		Logger: zaplog.New(e.logger, zapcore.ErrorLevel), // the client warns of each attempt
	}
	if cfg.CAFile != "" || cfg.CertFile != "" {
		info := transport.TLSInfo{CertFile: cfg.CertFile, KeyFile: cfg.KeyFile, TrustedCAFile: cfg.CAFile}
		tlsConfig, err := info.ClientConfig()
		if err != nil {
			return nil, err
		}
		config.TLS = tlsConfig
	}
	revisions, writes := newUnaryClient(cfg.Endpoints, config.TLS, true, e.logger), newUnaryClient(cfg.Endpoints, config.TLS, false, e.logger)
	if cfg.Stats != nil { // a unaryClient reports no stats
		config.DialOptions, writes = append(config.DialOptions, grpc.WithStatsHandler(cfg.Stats)), nil
	}
	if cfg.Dial != nil { // a unaryClient dials by itself
		config.DialOptions, revisions, writes = append(config.DialOptions, grpc.WithContextDialer(cfg.Dial)), nil, nil
	}
	client, err := clientv3.New(config)
	if err != nil {
		return nil, err
	}
	client.KV = clientv3.NewKVFromKVClient(clusterKV{clientv3.RetryKVClient(client), writes}, client)
	if err := e.awaitCluster(ctx, client); err != nil {
		client.Close()
		return nil, err
	}
	var next atomic.Uint64
	size := func(ctx context.Context) (int64, error) {
		status, err := client.Status(ctx, cfg.Endpoints[next.Add(1)%uint64(len(cfg.Endpoints))])
		if err != nil {
			return 0, err
		}
		return status.DbSize, nil
	}
	return &Connection{
		Client:    client,
		Watch:     etcdserverpb.NewWatchClient(client.ActiveConnection()),
		revisions: revisions,
		writes:    writes,
		members: &members{
			endpoints: client.Endpoints,
			status:    client.Status,
			logger:    e.logger,
		},
		Size:  size,
		Close: func() { revisions.close(); writes.close(); client.Close() },
	}, nil
}

// awaitCluster waits until a read succeeds, so that the cluster and this process may start in any order.
func (e *Etcd) awaitCluster(ctx context.Context, client *clientv3.Client) error {
	cluster := etcdserverpb.NewKVClient(client.ActiveConnection()) // unlike client, it returns the error of the first attempt
	patience := attemptTimeout
	for delay := 100 * time.Millisecond; ; delay = min(2*delay, time.Second) {
		attempt, cancel := context.WithTimeout(ctx, patience)
		_, err := cluster.Range(attempt, e.anyRead, grpc.WaitForReady(true))
		patience = min(2*patience, slowTimeout)
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return err
		}
		e.logger.Warn("etcd does not respond yet", "endpoints", client.Endpoints(), "error", err)
		if err := sleep(ctx, delay); err != nil {
			return err
		}
	}
}
