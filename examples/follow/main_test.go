package main

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/embedded"
)

// etcdVariable makes the test binary run the program against that etcd.
const etcdVariable = "FOLLOW_TEST_ETCD"

func TestMain(m *testing.M) {
	if etcd := os.Getenv(etcdVariable); etcd != "" {
		os.Args = []string{"follow", etcd, "/registry/pods/"}
		main()
	}
	os.Exit(m.Run())
}

// TestProgramFollowsEtcd runs the program against an etcd in another process.
func TestProgramFollowsEtcd(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "follow") // short enough for a socket's address, as TMPDIR may not be
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	store, err := embedded.New(embedded.Config{Dir: dir, UnsafeNoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	running, stop := context.WithCancel(context.Background())
	go func() { ended <- store.Run(running) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	put := func(key, value string, over int64) int64 {
		t.Helper()
		result, err := store.Put(t.Context(), key, []byte(value), kv.PutOptions{IfRevision: over})
		if err != nil || !result.Committed {
			t.Fatalf("%+v, %v", result, err)
		}
		return result.Revision
	}
	put("/registry/nodes/n", "elsewhere", 0)
	a := put("/registry/pods/a", "1", 0)

	follow := exec.CommandContext(t.Context(), os.Args[0])
	follow.Env = append(os.Environ(), etcdVariable+"=unix://"+filepath.Join(dir, "sock", "etcd"))
	var complaints bytes.Buffer
	follow.Stderr = &complaints
	out, err := follow.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	prints := func(want string) {
		t.Helper()
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("printed %q, want %q; %s", lines.Text(), want, &complaints)
		}
	}
	prints("a: 1")
	b := put("/registry/pods/b", "2", 0)
	prints("ADDED b: 2")
	put("/registry/pods/a", "3", a)
	prints("MODIFIED a: 3")
	put("/registry/nodes/m", "elsewhere", 0)
	if _, err := store.Delete(t.Context(), "/registry/pods/b", b); err != nil {
		t.Fatal(err)
	}
	prints("DELETED b: 2")
	if err := follow.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = follow.Wait() // it was killed
}

// TestProgramIsSmall checks what the README says: the program has fewer than sixty lines, and does not link the etcd
// server.
func TestProgramIsSmall(t *testing.T) {
	source, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	if lines := bytes.Count(source, []byte("\n")); lines >= 60 {
		t.Errorf("main.go has %d lines, want fewer than 60", lines)
	}
	deps, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(deps, []byte("go.etcd.io/etcd/server")) || bytes.Contains(deps, []byte("k8s.io/api/")) {
		t.Error("the program links the etcd server or Kubernetes")
	}
}
