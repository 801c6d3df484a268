package kvtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/larder-io/larder/internal/proctest"
)

// Kine is a process that speaks etcd's protocol over an SQLite database.
type Kine struct {
	*proctest.Process
	URL string
}

// StartKine builds kine, which takes minutes the first time, and starts it with flags, in addition to the flags of
// its address and database.
func StartKine(t testing.TB, flags ...string) *Kine {
	t.Helper()
	binary := buildKine(t)
	address := fmt.Sprintf("127.0.0.1:%d", proctest.Port(t))
	args := append([]string{
		"--listen-address", address, "--metrics-bind-address", "0",
		"--endpoint", "sqlite://" + filepath.Join(t.TempDir(), "state.db") + "?_journal=WAL&_busy_timeout=30000&_txlock=immediate",
	}, flags...)
	k := &Kine{URL: "http://" + address, Process: proctest.New(t, "kine", func() *exec.Cmd { return exec.Command(binary, args...) })}
	if err := k.Start(); err != nil {
		t.Fatal(err)
	}
	k.AwaitReady(t)
	return k
}

// AwaitReady waits until kine serves.
func (k *Kine) AwaitReady(t testing.TB) {
	t.Helper()
	k.Await(t, "Kine available at")
}

// buildKine builds the version that the module in the directory kine requires. It is a separate module, so that Larder
// does not depend on kine. Without cgo no C compiler is needed.
func buildKine(t testing.TB) string {
	t.Helper()
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		t.Fatal("kvtest: the source directory is unknown")
	}
	binary := filepath.Join(t.TempDir(), "kine")
	build := exec.Command("go", "build", "-o", binary, "github.com/k3s-io/kine")
	build.Dir = filepath.Join(filepath.Dir(file), "kine")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("kvtest: build kine: %v\n%s", err, out)
	}
	return binary
}
