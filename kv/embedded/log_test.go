package embedded_test

import (
	"fmt"
	"runtime"
	"testing"

	"go.etcd.io/etcd/server/v3/etcdserver/api/snap"
	"go.etcd.io/etcd/server/v3/storage/datadir"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.uber.org/zap"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv/embedded"
	"github.com/larder-io/larder/kv/kvtest"
)

// TestLogOfLargeValuesIsBounded checks that etcd's log takes little memory after many large writes, and that the next
// start reads little of it.
func TestLogOfLargeValuesIsBounded(t *testing.T) {
	const writes, size, most = 300, 500_000, 40e6
	heap := func() float64 {
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return float64(stats.HeapAlloc)
	}
	dir := t.TempDir()
	store := open(t, embedded.Config{Dir: dir})
	before := heap()
	value := string(make([]byte, size))
	for i := range writes {
		kvtest.Put(t, store, fmt.Sprintf("/registry/%d", i%10), value)
	}
	proctest.Eventually(t, "a snapshot is taken and the log is truncated", func() error {
		if grew := heap() - before; grew > most {
			return fmt.Errorf("the heap grew by %.0f bytes after writes of %d bytes", grew, writes*size)
		}
		return nil
	})
	store.Stop()
	if read := logRead(t, dir); read > 80e6 {
		t.Errorf("a start reads entries of %d bytes, want at most 80 MB", read)
	}
}

// logRead returns the size of the entries that a start of etcd reads.
func logRead(t *testing.T, dir string) (size int) {
	t.Helper()
	var from walpb.Snapshot
	if last, err := snap.New(zap.NewNop(), datadir.ToSnapDir(dir)).Load(); err == nil {
		from.Index, from.Term = last.Metadata.Index, last.Metadata.Term
	}
	log, err := wal.OpenForRead(zap.NewNop(), datadir.ToWALDir(dir), &from)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	_, _, entries, err := log.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		size += len(entry.Data)
	}
	return size
}
