package server

import (
	"runtime/debug"
	"strings"
	"testing"

	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/embedded"
	"github.com/larder-io/larder/kv/kvtest"
)

// TestReplayTakesAnEighthOfTheMemory checks that a tail replays the latest revisions of the embedded store that fit into
// an eighth of the memory limit.
func TestReplayTakesAnEighthOfTheMemory(t *testing.T) {
	const writes, size, fit = 20, 200_000, 7
	dir := t.TempDir()
	open := func() (store *kv.Etcd, stop func()) {
		store, err := embedded.New(embedded.Config{Dir: dir, UnsafeNoFsync: true})
		if err != nil {
			t.Fatal(err)
		}
		return store, kvtest.RunUntilEnd(t, store.Run)
	}
	store, stop := open()
	for range writes {
		kvtest.Put(t, store, "/registry/configmaps/a", strings.Repeat("x", size))
	}
	stop() // the size of the database counts only what is in its file
	store, stop = open()
	defer stop()
	s := &Server{config: Default()}
	s.config.Store.ReplayRevisions = writes
	before := debug.SetMemoryLimit(8 * (fit*size + size/2))
	tail := s.newTail(store)
	debug.SetMemoryLimit(before)
	defer kvtest.RunUntilEnd(t, tail.Run)()
	all := tail.Subscribe("/registry/configmaps/")
	defer all.Close()
	past, present, err := all.Begin(t.Context(), 0)
	if got := present - past; err != nil || got != fit {
		t.Errorf("replays %d revisions, want %d: %v", got, fit, err)
	}
}
