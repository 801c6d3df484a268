package embedded_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/embedded"
)

// playFiller writes to its embedded etcd until there is no space left. raw is the directory, as JSON.
func playFiller(raw string) {
	var dir string
	if err := json.Unmarshal([]byte(raw), &dir); err != nil {
		log.Fatal(err)
	}
	store, err := embedded.New(embedded.Config{Dir: dir, Fatal: func(err error) {
		fmt.Println("fatal:", err)
		os.Exit(7)
	}})
	if err != nil {
		log.Fatal(err)
	}
	go func() { log.Fatal(store.Run(context.Background())) }()
	<-store.Ready()
	// The database cannot grow further, as on a full disk. With the signal ignored, writes return an error.
	signal.Ignore(syscall.SIGXFSZ)
	const most = 20 << 20
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: most, Max: most}); err != nil {
		log.Fatal(err)
	}
	for i := 0; ; i++ {
		if _, err := store.Put(context.Background(), fmt.Sprintf("/registry/%d", i), []byte(strings.Repeat("x", 1<<20)), kv.PutOptions{}); err != nil {
			log.Fatal(err)
		}
		fmt.Println("wrote", i)
	}
}

// TestAcknowledgedWritesSurviveAFullDisk fills the disk. Config.Fatal must be called once, with the error, and every
// acknowledged write must be found afterwards.
func TestAcknowledgedWritesSurviveAFullDisk(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "etcd")
	filler := proctest.New(t, "filler", proctest.Role(t, fillerVariable, dir))
	if err := filler.Start(); err != nil {
		t.Fatal(err)
	}
	if err := filler.Wait(t); err == nil || err.Error() != "exit status 7" {
		t.Errorf("the process ended with %v, want exit status 7", err)
	}
	lines := strings.Split(strings.TrimSpace(filler.Output()), "\n")
	last := lines[len(lines)-1]
	if !strings.HasPrefix(last, "fatal: embedded: etcd failed: ") || !strings.HasSuffix(last, "file too large") {
		t.Errorf("the last line is %q, want the fatal error, file too large", last)
	}
	store := open(t, embedded.Config{Dir: dir})
	for i, line := range lines[:len(lines)-1] {
		if line != fmt.Sprintf("wrote %d", i) {
			t.Fatalf("line %d is %q, want an acknowledged write", i, line)
		}
		if _, found, _, err := store.Get(t.Context(), fmt.Sprintf("/registry/%d", i)); err != nil || !found {
			t.Errorf("write %d was acknowledged, but found %v, error %v", i, found, err)
		}
	}
}
