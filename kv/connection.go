package kv

import (
	"context"
	"log/slog"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/larder-io/larder/kv/internal/zaplog"
)

// LoggerKey is the attribute that marks etcd's own log entries, EtcdLogger its value.
const (
	LoggerKey  = zaplog.Key
	EtcdLogger = zaplog.Etcd
)

// StoreConfig has the settings that external and embedded etcd share.
type StoreConfig struct {
	// Prefix is the prefix of the cluster's keys; the health probe reads below it.
	Prefix string
	// CompactionInterval is for how long revisions are kept. With 0 the store never compacts, but observes compactions
	// by other processes.
	CompactionInterval time.Duration
	// LeaseReuse limits how long further keys are attached to a lease; 0 means a minute, and less than 0 gives each key
	// its own lease.
	LeaseReuse time.Duration
	Logger     *slog.Logger // nil discards
	Observer   Observer
}

// EtcdConfig configures an [Etcd]. [NewExternal] and package embedded fill it in.
type EtcdConfig struct {
	StoreConfig
	// Name is "external" or "embedded". It is part of errors.
	Name string
	// Open connects to etcd, or starts it, and fails when ctx ends. Run calls it once.
	Open func(ctx context.Context, recorder ResponseRecorder) (*Connection, error)
}

// Connection is an open connection to etcd, in another process or in this one.
type Connection struct {
	Client *clientv3.Client
	// Watch opens the streams of watches.
	Watch etcdserverpb.WatchClient
	// InProcess says that etcd is a server in this process, and the only member of its cluster. Its progress reports are
	// trusted, and ResponseRecorder.Record gets all its responses.
	InProcess bool
	// Maintain keeps the database within its quota until ctx ends; nil for a cluster, which its operator maintains.
	Maintain func(ctx context.Context) error
	// Size returns the bytes of the database file.
	Size func(ctx context.Context) (int64, error)
	// Recent returns the oldest revision >= past such that the values of all later revisions up to present have at most
	// this many bytes in total. It is nil if sizes are not known.
	Recent func(ctx context.Context, past, present, bytes int64) (int64, error)
	// Failed delivers an error when the server has failed; nil for a cluster.
	Failed <-chan error
	// Close ends the connection and waits for requests in progress. It is called last.
	Close func()

	// revisions reads the revision, and writes sends transactions. If one is nil, Client does its work.
	revisions, writes *unaryClient
	// members determines which members' progress reports can be trusted; nil for a server in this process, whose
	// reports are always trusted.
	members *members
}

// ResponseRecorder records the headers of responses of a server in this process before clients receive them. So the
// server's revision is known without a request.
type ResponseRecorder struct{ etcd *Etcd }

// Record records the header of a response, which may be nil. The history of a server in this process is not replaced
// while it runs.
func (a ResponseRecorder) Record(header *etcdserverpb.ResponseHeader) {
	if header != nil {
		h := &a.etcd.history
		h.clusterID.CompareAndSwap(0, header.ClusterId)
		h.raise(h.replacements.Load(), header.Revision, header.RaftTerm)
	}
}

// Revision returns the highest recorded revision.
func (a ResponseRecorder) Revision() int64 { return a.etcd.history.revision.Load() }

// RecordCompaction records that the server has compacted up to a revision.
func (a ResponseRecorder) RecordCompaction(revision int64) {
	a.etcd.observeCompaction(a.etcd.history.replacements.Load(), revision)
}
