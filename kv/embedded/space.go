package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"github.com/larder-io/larder/kv"
)

const (
	// spaceInterval is how often the size of the database is checked.
	spaceInterval = time.Second
	// fullInterval is the minimum pause after a failed attempt to make room in a full database, and after a
	// defragmentation of a nearly full one. The pause is at least fullPauses times as long as the attempt took, because
	// all requests wait for it.
	fullInterval = 10 * time.Second
	fullPauses   = 10
	// minFreedBytes is how many bytes a periodic defragmentation must free.
	minFreedBytes = 64 << 20
)

// space keeps the database of an embedded server within its quota. When etcd refuses writes because the quota is
// reached, space compacts old revisions, defragments the database and disarms the alarm. Reads, watches and deletions
// continue.
//
// A defragmentation copies used pages into a new file, and blocks reads and writes of the database. It must free as
// much as it copies.
type space struct {
	database backend.Backend
	alarmed  func() bool // etcd refuses to write
	client   *clientv3.Client
	member   uint64
	recorder kv.ResponseRecorder
	quota    int64
	interval time.Duration // of defragmentations; 0 is never
	minFreed int64         // bytes that one must free
	logger   *slog.Logger
	took     time.Duration // of the last defragmentation, even if it failed
}

func newSpace(server *etcdserver.EtcdServer, client *clientv3.Client, cfg Config, recorder kv.ResponseRecorder) *space {
	return &space{
		database: server.Backend(),
		alarmed: func() bool {
			return slices.ContainsFunc(server.Alarms(), func(a *etcdserverpb.AlarmMember) bool {
				return a.Alarm == etcdserverpb.AlarmType_NOSPACE
			})
		},
		client: client, member: uint64(server.MemberID()), recorder: recorder,
		quota: server.Cfg.QuotaBackendBytes, interval: cfg.DefragmentInterval, minFreed: minFreedBytes, logger: cfg.Logger,
	}
}

// run keeps the database within its quota until ctx ends.
func (s *space) run(ctx context.Context) error {
	last := time.Now()  // when a periodic defragmentation was last considered
	var early time.Time // earliest time of the next defragmentation before the quota is reached
	for pause := spaceInterval; ; {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
		pause = spaceInterval
		switch {
		case s.alarmed():
			if err := s.makeRoom(ctx); err != nil && ctx.Err() == nil {
				s.logger.Error("etcd has reached its quota and refuses writes", "quota", s.quota,
					"inUse", s.database.SizeInUse(), "error", err)
				pause = max(fullInterval, fullPauses*s.took)
			}
		case s.database.Size() > s.threshold() && s.hasRoom() && time.Now().After(early):
			s.defragment()                                               // before writes are refused
			early = time.Now().Add(max(fullInterval, fullPauses*s.took)) // even after a failure
		case s.interval > 0 && time.Since(last) >= s.interval:
			last = time.Now()
			s.releasePages()
			if used := s.database.SizeInUse(); s.database.Size()-used >= max(used, s.minFreed) {
				s.defragment()
			}
		}
	}
}

// threshold returns the size above which the database is defragmented before it is full.
func (s *space) threshold() int64 { return s.quota - s.quota/20 }

// hasRoom reports whether a defragmentation would shrink the database well below the quota.
func (s *space) hasRoom() bool { return s.database.SizeInUse() <= s.threshold()-s.quota/20 }

// errFull says that neither compaction nor defragmentation makes room.
var errFull = errors.New("embedded: the database has too little free space: delete objects, or raise the quota")

// makeRoom makes room and disarms the alarm. It compacts only if defragmentation is not enough.
func (s *space) makeRoom(ctx context.Context) error {
	if s.database.Size() > s.threshold() {
		if !s.hasRoom() {
			if err := s.compactAll(ctx); err != nil {
				return err
			}
		}
		if err := s.defragment(); err != nil {
			return err
		}
		if s.database.Size() > s.threshold() {
			return errFull
		}
	}
	_, err := s.client.AlarmDisarm(ctx, &clientv3.AlarmMember{MemberID: s.member, Alarm: etcdserverpb.AlarmType_NOSPACE})
	if err != nil {
		return fmt.Errorf("embedded: clear the alarm: %w", err)
	}
	s.logger.Warn("etcd has room again after it had reached its quota", "quota", s.quota, "size", s.database.Size())
	return nil
}

// compactAll compacts all revisions before the present one.
func (s *space) compactAll(ctx context.Context) error {
	revision := s.recorder.Revision()
	_, err := s.client.Compact(ctx, revision, clientv3.WithCompactPhysical())
	switch {
	case errors.Is(err, rpctypes.ErrCompacted):
		return errFull
	case err != nil:
		return fmt.Errorf("embedded: compact a full store: %w", err)
	}
	s.recorder.RecordCompaction(revision)
	return nil
}

// releasePages makes etcd count recently freed pages as free, which bbolt does a few commits later. etcd skips a commit
// without a change, so each commit deletes a key that does not exist.
func (s *space) releasePages() {
	const commits = 3
	for range commits {
		tx := s.database.BatchTx()
		tx.LockOutsideApply()
		tx.UnsafeDelete(schema.Meta, []byte("nothing"))
		tx.Unlock()
		s.database.ForceCommit()
	}
}

func (s *space) defragment() error {
	before, start := s.database.Size(), time.Now()
	err := s.database.Defrag()
	s.took = time.Since(start)
	if err != nil {
		err = fmt.Errorf("embedded: defragment: %w", err)
		s.logger.Warn("cannot defragment etcd's database", "error", err)
		return err
	}
	s.logger.Info("etcd's database was defragmented", "before", before, "after", s.database.Size(), "took", s.took)
	return nil
}
