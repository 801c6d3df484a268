package embedded

import (
	"context"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/pkg/v3/pbutil"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/raft/v3/raftpb"
)

const (
	// snapshotCount is the number of entries between two snapshots of the log. A start reads the entries after the last
	// snapshot into memory.
	snapshotCount = 1000
	// logBytes is the size of the writes after which fillers are appended.
	logBytes = 8 << 20
	// fillers is the number of entries after which etcd drops all earlier ones. It must be greater than
	// memorySnapshotCount, which is 100 (etcd server/etcdserver/server.go).
	fillers = 128
)

// writeLog bounds the memory of etcd's raft log. etcd limits only the number of entries, so large values would need a
// thousand times the memory of small ones. After logBytes of writes, writeLog appends entries without effect, so that
// etcd drops earlier ones. It does not count writes of the socket's clients.
type writeLog struct {
	server *etcdserver.EtcdServer
	filler []byte       // the data of an entry that etcd does not apply
	bytes  atomic.Int64 // of all writes
}

func newWriteLog(server *etcdserver.EtcdServer) *writeLog {
	// etcd skips a read that no client waits for. The ID cannot equal one of etcd's, which contain a time.
	return &writeLog{server: server, filler: pbutil.MustMarshalMessage(&etcdserverpb.InternalRaftRequest{ID: 1, Range: &etcdserverpb.RangeRequest{}})}
}

// wrote counts a write of size bytes, and appends the fillers when logBytes are reached. If that fails, it tries again
// after another logBytes.
func (l *writeLog) wrote(ctx context.Context, size int) {
	bytes := l.bytes.Add(int64(size))
	if bytes/logBytes == (bytes-int64(size))/logBytes {
		return
	}
	entries := make([]*raftpb.Entry, fillers)
	for i := range entries {
		entries[i] = &raftpb.Entry{Data: l.filler}
	}
	id := uint64(l.server.MemberID())
	_ = l.server.Process(ctx, &raftpb.Message{Type: raftpb.MsgProp.Enum(), From: &id, To: &id, Entries: entries})
}
