package kv_test

import (
	"bufio"
	"context"
	"encoding/json"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/kvtest"
)

// roleVariable makes the test binary play another process: a member of an etcd
// cluster, or a program that writes into its embedded etcd.
const roleVariable = "LARDER_KV_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case "member":
		log.Fatal(kvtest.RunMember(os.Getenv(memberVariable)))
	case "writer":
		playWriter()
	default:
		goleak.VerifyTestMain(m)
	}
}

// spawn starts the test binary in a role and returns the process and its output's
// lines. The process is killed when the test ends.
func spawn(t *testing.T, role string, env ...string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(executable)
	cmd.Env = append(os.Environ(), append(env, roleVariable+"="+role)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kill(cmd) })
	return cmd, bufio.NewScanner(out)
}

// kill ends a process as SIGKILL does and waits for it.
func kill(cmd *exec.Cmd) {
	cmd.Process.Kill()
	cmd.Wait()
}

const memberVariable = "LARDER_KV_TEST_MEMBER"

// freePorts returns loopback addresses that nobody listened on just now.
func freePorts(t *testing.T, n int) []string {
	t.Helper()
	addresses := make([]string, n)
	for i := range addresses {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		addresses[i] = l.Addr().String()
	}
	return addresses
}

// member is a process of a cluster.
type member struct {
	cmd    *exec.Cmd
	config kvtest.MemberConfig
}

// start starts the process, for the first time or again.
func (m *member) start(t *testing.T) (ready func()) {
	t.Helper()
	raw, err := json.Marshal(m.config)
	if err != nil {
		t.Fatal(err)
	}
	cmd, lines := spawn(t, "member", memberVariable+"="+string(raw))
	m.cmd = cmd
	return func() {
		t.Helper()
		if !lines.Scan() || lines.Text() != "ready" {
			t.Fatalf("member %s: %q, %v", m.config.Name, lines.Text(), lines.Err())
		}
	}
}

// startCluster starts a cluster of real members.
func startCluster(t *testing.T, size int, adjust func(*kvtest.MemberConfig)) []*member {
	t.Helper()
	ports := freePorts(t, 2*size)
	members := make([]*member, size)
	var cluster []string
	for i := range members {
		name := "m" + strconv.Itoa(i)
		peer := "http://" + ports[2*i]
		cluster = append(cluster, name+"="+peer)
		members[i] = &member{config: kvtest.MemberConfig{
			Name: name, Dir: filepath.Join(t.TempDir(), name), Peer: peer, Client: "http://" + ports[2*i+1],
			HeartbeatMs: 50, VoteMs: 500,
		}}
		if adjust != nil {
			adjust(&members[i].config)
		}
	}
	var ready []func()
	for _, m := range members {
		m.config.Cluster = strings.Join(cluster, ",")
		ready = append(ready, m.start(t))
	}
	for _, wait := range ready {
		wait()
	}
	return members
}

func endpoints(members []*member) []string {
	var urls []string
	for _, m := range members {
		urls = append(urls, m.config.Client)
	}
	return urls
}

// runStore runs a store until the test ends and waits until it is open.
func runStore(t *testing.T, store *kv.Etcd, err error) *kv.Etcd {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- store.Run(context.Background()) }()
	t.Cleanup(func() {
		store.Close()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	select {
	case <-store.Ready():
	case <-time.After(time.Minute):
		t.Fatal("the store does not open")
	}
	return store
}

func openEmbedded(t *testing.T, cfg kv.EmbeddedConfig) *kv.Etcd {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	cfg.UnsafeNoFsync = true
	store, err := kv.NewEmbedded(cfg)
	return runStore(t, store, err)
}

func openExternal(t *testing.T, cfg kv.ExternalConfig) *kv.Etcd {
	t.Helper()
	store, err := kv.NewExternal(cfg)
	return runStore(t, store, err)
}

func subject(store *kv.Etcd) kvtest.Subject {
	return kvtest.Subject{Store: store, Compact: store.CompactAt, PutAll: store.PutAll}
}
