package embedded_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"strings"
	"sync"
	"testing"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/embedded"
)

// playWriter writes keys to its embedded etcd and prints each acknowledged one, until the process is killed. raw is the
// name of the directory, as JSON.
func playWriter(raw string) {
	var dir string
	if err := json.Unmarshal([]byte(raw), &dir); err != nil {
		log.Fatal(err)
	}
	store, err := embedded.New(embedded.Config{Dir: dir, SnapshotCount: 100})
	if err != nil {
		log.Fatal(err)
	}
	go func() { log.Fatal(store.Run(context.Background())) }()
	ctx := context.Background()
	start, err := store.Revision(ctx)
	if err != nil {
		log.Fatal(err)
	}
	var mu sync.Mutex // held while a line is printed
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

// TestAcknowledgedWritesSurviveAKill kills a process several times while it writes, and checks that every
// acknowledged write is there.
func TestAcknowledgedWritesSurviveAKill(t *testing.T) {
	dir := t.TempDir()
	writer := proctest.New(t, "writer", proctest.Role(t, writerVariable, dir))
	acknowledged := make(map[string]int64)
	for _, writes := range []int{1, 60, 250} {
		if err := writer.Start(); err != nil {
			t.Fatal(err)
		}
		writer.Eventually(t, "writes", func() error {
			if done := strings.Count(writer.Output(), "\n"); done < writes {
				return fmt.Errorf("%d lines of %d", done, writes)
			}
			return nil
		})
		writer.Kill()
		for line := range strings.Lines(writer.Output()) {
			var key string
			var revision int64
			if _, err := fmt.Sscanf(line, "%s %d\n", &key, &revision); err != nil {
				break // the kill has truncated it
			}
			acknowledged[key] = revision
		}
	}
	if len(acknowledged) < 300 {
		t.Fatalf("%d writes were acknowledged, want at least 300", len(acknowledged))
	}
	store := open(t, embedded.Config{Dir: dir})
	for key, revision := range acknowledged {
		item, found, _, err := store.Get(t.Context(), key)
		if err != nil || !found || item.Revision != revision {
			t.Errorf("%s, acknowledged at %d: found %v at %d, error %v", key, revision, found, item.Revision, err)
		}
	}
}
