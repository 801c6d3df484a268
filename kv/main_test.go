package kv_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/kvtest"
)

// roleVariable makes the test binary play another process: a member of an etcd
// cluster, or a program that writes into its embedded etcd.
const roleVariable = "LARDER_KV_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case "member":
		playMember()
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

// memberConfig is what a member process reads from its environment.
type memberConfig struct {
	Name, Dir           string
	Client, Peer        string // URLs
	Cluster             string
	CA, Cert, Key       string // of the client listener
	HeartbeatMs, VoteMs uint
}

const memberVariable = "LARDER_KV_TEST_MEMBER"

// playMember runs an etcd server until it is killed.
func playMember() {
	var cfg memberConfig
	if err := json.Unmarshal([]byte(os.Getenv(memberVariable)), &cfg); err != nil {
		log.Fatal(err)
	}
	parse := func(raw string) []url.URL {
		u, err := url.Parse(raw)
		if err != nil {
			log.Fatal(err)
		}
		return []url.URL{*u}
	}
	config := embed.NewConfig()
	config.Name, config.Dir = cfg.Name, cfg.Dir
	config.ListenClientUrls, config.AdvertiseClientUrls = parse(cfg.Client), parse(cfg.Client)
	config.ListenPeerUrls, config.AdvertisePeerUrls = parse(cfg.Peer), parse(cfg.Peer)
	config.InitialCluster = cfg.Cluster
	config.TickMs, config.ElectionMs = cfg.HeartbeatMs, cfg.VoteMs
	config.UnsafeNoFsync = true // the machine does not die in these tests
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	if cfg.CA != "" {
		config.ClientTLSInfo.TrustedCAFile = cfg.CA
		config.ClientTLSInfo.CertFile, config.ClientTLSInfo.KeyFile = cfg.Cert, cfg.Key
		config.ClientTLSInfo.ClientCertAuth = true
	}
	server, err := embed.StartEtcd(config)
	if err != nil {
		log.Fatal(err)
	}
	<-server.Server.ReadyNotify()
	fmt.Println("ready")
	log.Fatal(<-server.Err())
}

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
	config memberConfig
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
func startCluster(t *testing.T, size int, adjust func(*memberConfig)) []*member {
	t.Helper()
	ports := freePorts(t, 2*size)
	members := make([]*member, size)
	var cluster []string
	for i := range members {
		name := "m" + strconv.Itoa(i)
		peer := "http://" + ports[2*i]
		cluster = append(cluster, name+"="+peer)
		members[i] = &member{config: memberConfig{
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
