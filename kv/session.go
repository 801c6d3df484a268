package kv

import (
	"context"
	"log/slog"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/larder-io/larder/kv/internal/zaplog"
)

// LoggerKey is the attribute by which etcd's own entries in a log can be told from this
// package's, EtcdLogger its value.
const (
	LoggerKey  = zaplog.Key
	EtcdLogger = zaplog.Etcd
)

// Opening says how an Etcd comes to etcd. [NewExternal] makes one of a cluster, package
// embedded one of a server in this process.
type Opening struct {
	// Name tells the ways apart in errors: "external", "embedded".
	Name string
	// Open comes to etcd, or fails when ctx ends. Run calls it once.
	Open func(ctx context.Context, answers Answers) (*Session, error)
	// Prefix is where the keys of the cluster lie; the health probe reads below it.
	Prefix string
	// CompactionInterval is how much history to keep; 0 never compacts, but follows
	// compactions by others.
	CompactionInterval time.Duration
	// LeaseReuse is for how long further keys are attached to a lease, at most; 0 means a
	// minute, and less than 0 gives each key a lease of its own.
	LeaseReuse time.Duration
	Logger     *slog.Logger // nil discards
	Observer   Observer
}

// Session is etcd as an Etcd uses it while it runs.
type Session struct {
	Client *clientv3.Client
	// Watch opens the streams of watches.
	Watch etcdserverpb.WatchClient
	// Alone reports whether etcd is a server in this process and no other member can have
	// acknowledged anything; nil for a cluster. Such a server's reports of progress are
	// believed, and all that it answers goes through Answers.Learn.
	Alone func() bool
	// Tend looks after what is stored until ctx ends; nil leaves that to others.
	Tend func(ctx context.Context) error
	// Size returns the bytes of the database file.
	Size func(ctx context.Context) (int64, error)
	// Failed delivers, or is closed, when the server died; nil for a cluster.
	Failed <-chan error
	// Close ends the session, and waits for what is under way. Nothing is asked afterwards.
	Close func()

	direct *direct // nil: there is none
	// members tells which members' progress is believed; nil believes the only one,
	// which is in this process.
	members *members
}

// Answers is where a server in this process leaves what it answers, before it gives the
// answer to anybody: so its revision is known without asking it.
type Answers struct{ etcd *Etcd }

// Learn takes in the header of an answer; nil is none. The history of a server in this
// process is not replaced while it runs.
func (a Answers) Learn(header *etcdserverpb.ResponseHeader) {
	if header != nil {
		h := &a.etcd.history
		h.clusterID.CompareAndSwap(0, header.ClusterId)
		h.raise(h.generation.Load(), header)
	}
}

// Revision returns the highest revision that was learnt.
func (a Answers) Revision() int64 { return a.etcd.history.revision.Load() }

// Compacted takes in that history up to a revision has been given up.
func (a Answers) Compacted(revision int64) {
	a.etcd.observeCompaction(a.etcd.history.generation.Load(), revision)
}
