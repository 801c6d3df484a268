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
	// CompactionInterval is how much history to keep; 0 never compacts, but follows
	// compactions by others.
	CompactionInterval time.Duration
	// LeaseReuse limits how long a lease accepts further keys; 0 means a minute, and less
	// than 0 gives each key its own lease.
	LeaseReuse time.Duration
	Logger     *slog.Logger // nil discards
	Observer   Observer
}

// EtcdConfig configures an [Etcd]. [NewExternal] fills it in for a cluster, package embedded for a
// server in this process.
type EtcdConfig struct {
	StoreConfig
	// Name is "external" or "embedded". It is part of errors.
	Name string
	// Open connects to etcd, or starts it, and fails when ctx ends. Run calls it once.
	Open func(ctx context.Context, answers Answers) (*Connection, error)
}

// Connection is an open connection to etcd, in another process or in this one.
type Connection struct {
	Client *clientv3.Client
	// Watch opens the streams of watches.
	Watch etcdserverpb.WatchClient
	// OnlyMember reports whether etcd is a server in this process and no other member can
	// have acknowledged anything; nil for a cluster. The progress reports of such a server are
	// trusted, and all its answers go through Answers.Learn.
	OnlyMember func() bool
	// Maintain keeps the database within its quota until ctx ends; nil leaves that to the
	// cluster's operator.
	Maintain func(ctx context.Context) error
	// Size returns the bytes of the database file.
	Size func(ctx context.Context) (int64, error)
	// Recent returns the oldest revision >= past such that all later revisions up to present have at most
	// this many bytes. It is nil if sizes are not known.
	Recent func(ctx context.Context, past, present, bytes int64) (int64, error)
	// Failed delivers, or is closed, when the server has died; nil for a cluster.
	Failed <-chan error
	// Close ends the connection and waits for requests in progress. It is called last.
	Close func()

	// revisions reads the revision, writes sends transactions; nil leaves that to Client.
	revisions, writes *unaryClient
	// members knows which members' reports of progress can be trusted. It is nil for a server in this
	// process, whose reports always can.
	members *members
}

// Answers records the answers of a server in this process before its clients receive them, so that
// the server's revision is known without asking it.
type Answers struct{ etcd *Etcd }

// Learn records the header of an answer, which may be nil. The history of a server in this process is
// not replaced while it runs.
func (a Answers) Learn(header *etcdserverpb.ResponseHeader) {
	if header != nil {
		h := &a.etcd.history
		h.clusterID.CompareAndSwap(0, header.ClusterId)
		h.raise(h.replacements.Load(), header.Revision, header.RaftTerm)
	}
}

// Revision returns the highest recorded revision.
func (a Answers) Revision() int64 { return a.etcd.history.revision.Load() }

// Compacted records that the server has compacted up to a revision.
func (a Answers) Compacted(revision int64) {
	a.etcd.observeCompaction(a.etcd.history.replacements.Load(), revision)
}
