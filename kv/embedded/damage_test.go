package embedded_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv/embedded"

	"github.com/larder-io/larder/kv/kvtest"
)

// openerConfig configures a process that opens damaged stores.
type openerConfig struct {
	Dir   string   // of an undamaged store
	Seeds []uint64 // one for each damage
}

// playOpener opens copies of a store, each damaged differently, and prints the results, until etcd ends the
// process.
func playOpener(raw string) {
	var config openerConfig
	if err := json.Unmarshal([]byte(raw), &config); err != nil {
		log.Fatal(err)
	}
	const database = "member/snap/db"
	for _, seed := range config.Seeds {
		dir := fmt.Sprintf("%s-%d", config.Dir, seed)
		if err := os.CopyFS(dir, os.DirFS(config.Dir)); err != nil {
			log.Fatal(err)
		}
		content, err := os.ReadFile(filepath.Join(dir, database))
		if err != nil {
			log.Fatal(err)
		}
		damage(content, rand.New(rand.NewPCG(seed, 0)))
		if err := os.WriteFile(filepath.Join(dir, database), content, 0o600); err != nil {
			log.Fatal(err)
		}
		fmt.Printf("seed %d: %v\n", seed, tryOpen(dir))
		os.RemoveAll(dir)
	}
}

// damage overwrites a random page, or its beginning.
func damage(content []byte, random *rand.Rand) {
	const page = 4096
	used := len(strings.TrimRight(string(content), "\x00"))
	at := page * (2 + random.IntN(used/page-2)) // after the two meta pages, because bbolt needs only one of them
	for i := range []int{page, 64}[random.IntN(2)] {
		content[at+i] = byte(random.Uint32())
	}
}

// tryOpen opens a store and closes it again.
func tryOpen(dir string) error {
	store, err := embedded.New(embedded.Config{Dir: dir, UnsafeNoFsync: true})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- store.Run(ctx) }()
	select {
	case <-store.Ready():
		cancel()
		return <-ended
	case err := <-ended:
		return err
	}
}

// fill creates a store with some keys and closes it.
func fill(t *testing.T, dir string) {
	t.Helper()
	store, err := embedded.New(embedded.Config{Dir: dir, UnsafeNoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	stop := kvtest.RunUntilEnd(t, store.Run)
	for i := range 300 {
		kvtest.Put(t, store, fmt.Sprintf("/registry/%d", i), strings.Repeat("x", 1000))
	}
	stop()
}

// TestDamagedDatabasesDoNotEndTheProcess checks that a store with a damaged database opens, or returns an error that
// names the directory.
func TestDamagedDatabasesDoNotEndTheProcess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "etcd")
	fill(t, dir)
	config := openerConfig{Dir: dir}
	for seed := range uint64(12) {
		config.Seeds = append(config.Seeds, seed)
	}
	opener := proctest.New(t, "opener", proctest.Role(t, openerVariable, config))
	if err := opener.Start(); err != nil {
		t.Fatal(err)
	}
	if err := opener.Wait(t); err != nil {
		t.Fatalf("%v\n%s", err, opener.Output())
	}
	refused := 0
	for line := range strings.Lines(opener.Output()) {
		if !strings.HasSuffix(line, ": <nil>\n") {
			refused++
			if !strings.Contains(line, dir) {
				t.Errorf("the error does not name the directory: %s", line)
			}
		}
	}
	if refused == 0 {
		t.Errorf("no damage was detected:\n%s", opener.Output())
	}
}
