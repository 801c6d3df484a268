package kv_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/larder-io/larder/kv"
)

const dirVariable = "LARDER_KV_TEST_DIR"

// playWriter writes keys into its embedded etcd and prints each one that was
// acknowledged, until it is killed.
func playWriter() {
	store, err := kv.NewEmbedded(kv.EmbeddedConfig{Dir: os.Getenv(dirVariable), SnapshotCount: 100})
	if err != nil {
		log.Fatal(err)
	}
	go func() { log.Fatal(store.Run(context.Background())) }()
	ctx := context.Background()
	start, err := store.Revision(ctx)
	if err != nil {
		log.Fatal(err)
	}
	var mu sync.Mutex // lines must not mix
	for writer := range 4 {
		go func() {
			for i := 0; ; i++ {
				key := fmt.Sprintf("/registry/%d/%d/%d", start, writer, i)
				result, err := store.Put(ctx, key, []byte(strings.Repeat("x", 1000)), kv.PutOptions{})
				if err != nil {
					log.Fatal(err)
				}
				mu.Lock()
				fmt.Println(key, result.Revision)
				mu.Unlock()
			}
		}()
	}
	select {}
}

// TestEmbeddedSurvivesKill kills a process in the middle of its writes, several
// times over, and finds all that it had been told was written.
func TestEmbeddedSurvivesKill(t *testing.T) {
	dir := t.TempDir()
	acknowledged := make(map[string]int64)
	for _, writes := range []int{1, 60, 250} {
		cmd, lines := spawn(t, "writer", dirVariable+"="+dir)
		for n := 0; lines.Scan(); n++ {
			var key string
			var revision int64
			if _, err := fmt.Sscan(lines.Text(), &key, &revision); err != nil {
				break // cut off by the kill
			}
			acknowledged[key] = revision
			if n == writes {
				cmd.Process.Kill()
			}
		}
		kill(cmd)
	}
	if len(acknowledged) < 300 {
		t.Fatalf("only %d writes were acknowledged", len(acknowledged))
	}
	store := openEmbedded(t, kv.EmbeddedConfig{Dir: dir})
	for key, revision := range acknowledged {
		item, found, _, err := store.Get(t.Context(), key)
		if err != nil || !found || item.Revision != revision {
			t.Errorf("%s, acknowledged at %d: found %v at %d, %v", key, revision, found, item.Revision, err)
		}
	}
}
