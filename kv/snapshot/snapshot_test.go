package snapshot_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/proctest/testcert"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/embedded"
	"github.com/larder-io/larder/kv/kvtest"
	"github.com/larder-io/larder/kv/snapshot"
)

// memberVariable makes the test binary run as a member of an etcd cluster.
const memberVariable = "LARDER_SNAPSHOT_TEST_MEMBER"

func TestMain(m *testing.M) {
	proctest.ShortTemp()
	if raw := os.Getenv(memberVariable); raw != "" {
		log.Fatal(kvtest.RunMember(raw))
	}
	proctest.Main(m)
}

// open runs the server of a data directory until the test ends.
func open(t *testing.T, dir string) *kv.Etcd {
	t.Helper()
	store, err := embedded.New(embedded.Config{Dir: dir, UnsafeNoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	kvtest.RunUntilEnd(t, store.Run)
	select {
	case <-store.Ready():
	case <-time.After(proctest.Patience):
		t.Fatal("the store does not open")
	}
	return store
}

// source returns the server that runs in a data directory.
func source(t *testing.T, dir string) snapshot.Source {
	t.Helper()
	socket, err := embedded.Socket(dir)
	if err != nil {
		t.Fatal(err)
	}
	return snapshot.Source{Endpoints: []string{socket.String()}}
}

// shortDir returns a directory whose path is short enough for a socket.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "larder-snapshot-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// names returns the names of a directory's entries.
func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, entry := range entries {
		all = append(all, entry.Name())
	}
	return strings.Join(all, " ")
}

// saved returns a snapshot of a store with some keys, and the store's revision.
func saved(t *testing.T) (path string, revision int64) {
	t.Helper()
	dir := shortDir(t)
	store := open(t, filepath.Join(dir, "etcd"))
	for i := range 50 {
		revision = kvtest.Put(t, store, fmt.Sprintf("/registry/%02d", i), strings.Repeat("v", 2000))
	}
	path = filepath.Join(t.TempDir(), "backup")
	if _, err := snapshot.Save(t.Context(), source(t, filepath.Join(dir, "etcd")), path); err != nil {
		t.Fatal(err)
	}
	return path, revision
}

// TestSnapshotDuringWritesIsConsistent saves a store while it is written to. The restored store must have all writes that
// were acknowledged before, and no later write without all earlier ones. Revisions before the restore must be compacted,
// and no revision may be used again.
func TestSnapshotDuringWritesIsConsistent(t *testing.T) {
	dir := shortDir(t)
	store := open(t, filepath.Join(dir, "etcd"))
	var acknowledged atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	written := make(chan error, 1)
	go func() {
		for i := int64(0); ctx.Err() == nil; i++ {
			key := fmt.Sprintf("/registry/%08d", i)
			if _, err := store.Put(ctx, key, bytes.Repeat([]byte(strconv.FormatInt(i%10, 10)), 5000), kv.PutOptions{}); err != nil {
				written <- err
				return
			}
			acknowledged.Store(i + 1)
		}
		written <- nil
	}()
	proctest.Eventually(t, "some keys are written", func() error {
		if n := acknowledged.Load(); n < 200 {
			return fmt.Errorf("%d keys", n)
		}
		return nil
	})
	before := acknowledged.Load()
	file := filepath.Join(dir, "backup")
	status, err := snapshot.Save(t.Context(), source(t, filepath.Join(dir, "etcd")), file)
	stop()
	if writing := <-written; err != nil || writing != nil && !errors.Is(writing, context.Canceled) {
		t.Fatal(err, writing)
	}
	after := acknowledged.Load()
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the snapshot's file: %v, error %v; want mode 0600", info, err)
	}
	if int64(status.TotalKey) < before || int64(status.TotalKey) > after+2 || status.Revision < before {
		t.Errorf("Save returned %+v, want %d to %d keys", status, before, after+2)
	}
	restored := filepath.Join(dir, "restored")
	again, err := snapshot.Restore(t.Context(), snapshot.RestoreConfig{Path: file, Dir: restored, Bump: snapshot.DefaultBump})
	if err != nil || again != status {
		t.Fatalf("Restore returned %+v and error %v, want %+v", again, err, status)
	}
	if left := names(t, dir); left != "backup etcd restored" {
		t.Errorf("the directory has %s, want backup, etcd and restored", left)
	}
	copied := open(t, restored)
	page, err := copied.Range(t.Context(), kv.RangeOptions{Prefix: "/registry/"})
	if err != nil {
		t.Fatal(err)
	}
	if n := int64(len(page.Items)); n < before || n > after+1 { // the last may have been committed without a response
		t.Errorf("%d keys are restored, want %d to %d", n, before, after+1)
	}
	for i, item := range page.Items {
		if item.Key != fmt.Sprintf("/registry/%08d", i) || len(item.Value) != 5000 || item.Value[0] != byte('0'+i%10) {
			t.Fatalf("restored key %d is %s with %d bytes, want /registry/%08d with 5000", i, item.Key, len(item.Value), i)
		}
	}
	if page.Revision < status.Revision+snapshot.DefaultBump {
		t.Errorf("the restored store is at revision %d, want at least %d", page.Revision, status.Revision+snapshot.DefaultBump)
	}
	last, _ := store.Revision(t.Context())
	response, ok := <-copied.Watch(t.Context(), "/registry/", last)
	if !ok || !errors.Is(response.Err, kv.ErrCompacted) {
		t.Errorf("a watch after revision %d gets %+v, want ErrCompacted", last, response)
	}
}

// TestEachRestoreIsANewCluster checks that restores have different IDs, so that a connected client detects that the store
// was replaced even if the revision does not decrease.
func TestEachRestoreIsANewCluster(t *testing.T) {
	path, _ := saved(t)
	ids := make(map[uint64]bool)
	for i := range 3 {
		var member snapshot.Member
		if i == 2 {
			member.Token = "mine"
		}
		dir := filepath.Join(shortDir(t), "etcd")
		if _, err := snapshot.Restore(t.Context(), snapshot.RestoreConfig{Path: path, Dir: dir, Member: member}); err != nil {
			t.Fatal(err)
		}
		open(t, dir)
		members, err := kvtest.NewClient(t, source(t, dir).Endpoints).IDs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ids[members[embedded.MemberName]] = true // derived from the cluster's token
	}
	if len(ids) != 3 {
		t.Errorf("three restores have ids %v, want three", ids)
	}
}

// TestExistingFilesAreNotReplaced checks that Save does not replace a file, nor Restore a non-empty directory.
func TestExistingFilesAreNotReplaced(t *testing.T) {
	path, _ := saved(t)
	was, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := snapshot.Save(t.Context(), snapshot.Source{Endpoints: []string{"http://127.0.0.1:1"}}, path); !errors.Is(err, fs.ErrExist) {
		t.Errorf("Save: got error %v, want ErrExist", err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "mine"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := snapshot.Restore(t.Context(), snapshot.RestoreConfig{Path: path, Dir: dir}); err == nil || !strings.Contains(err.Error(), "is not empty") {
		t.Errorf("Restore: got error %v, want that the directory is not empty", err)
	}
	if is, err := os.ReadFile(path); err != nil || !bytes.Equal(is, was) || names(t, dir) != "mine" {
		t.Errorf("the snapshot has changed, or the directory: it has %s; error %v", names(t, dir), err)
	}
	if _, err := snapshot.Restore(t.Context(), snapshot.RestoreConfig{Path: path, Dir: t.TempDir()}); err != nil {
		t.Errorf("Restore into an empty directory: %v", err)
	}
}

// TestDamagedSnapshotsAreNotRestored checks that a damaged snapshot is rejected, and that no files are left.
func TestDamagedSnapshotsAreNotRestored(t *testing.T) {
	path, _ := saved(t)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	flip := func(at int) []byte {
		bad := bytes.Clone(good)
		bad[at] ^= 1
		return bad
	}
	for name, c := range map[string]struct {
		content []byte
		want    string
	}{
		"a bit in the middle": {flip(len(good) / 2), "checksum is wrong"},
		"a checksum bit":      {flip(len(good) - 1), "checksum is wrong"},
		"the end is missing":  {good[:len(good)-100], "not a complete etcd snapshot"},
		"no checksum":         {good[:len(good)-32], "not a complete etcd snapshot"},
		"a block is missing":  {append(bytes.Clone(good[:4096]), good[8192:]...), "checksum is wrong"},
		"empty":               {nil, "not a complete etcd snapshot"},
		"another file":        {[]byte("apiVersion: v1\n"), "not a complete etcd snapshot"},
	} {
		dir := t.TempDir()
		bad := filepath.Join(dir, "bad")
		if err := os.WriteFile(bad, c.content, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := snapshot.Inspect(t.Context(), bad); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: Inspect: got error %v, want %s", name, err, c.want)
		}
		_, err := snapshot.Restore(t.Context(), snapshot.RestoreConfig{Path: bad, Dir: filepath.Join(dir, "etcd")})
		if err == nil || !strings.Contains(err.Error(), c.want) || names(t, dir) != "bad" {
			t.Errorf("%s: Restore: got error %v, want %s; the directory has %s, want bad", name, err, c.want, names(t, dir))
		}
	}
}

// TestInterruptedRestoreLeavesNoFiles checks a Restore whose context has ended.
func TestInterruptedRestoreLeavesNoFiles(t *testing.T) {
	path, _ := saved(t)
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := snapshot.Restore(ctx, snapshot.RestoreConfig{Path: path, Dir: filepath.Join(dir, "restored")})
	if !errors.Is(err, context.Canceled) || names(t, dir) != "" {
		t.Errorf("got error %v, want Canceled; the directory has %s, want no files", err, names(t, dir))
	}
}

// TestSaveUsesCertificates checks a Save from an etcd with TLS, and the errors of wrong certificates.
func TestSaveUsesCertificates(t *testing.T) {
	ca, dir := testcert.New(t, "ca"), t.TempDir()
	caFile, strangerFile := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "stranger.crt")
	for name, authority := range map[string]*testcert.Authority{caFile: ca, strangerFile: testcert.New(t, "stranger")} {
		if err := os.WriteFile(name, []byte(authority.PEM()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	serverCert, serverKey := testcert.Write(t, dir, "server", ca.Sign(t, "server", nil, func(c *x509.Certificate) {
		c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
		c.ExtKeyUsage = append(c.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}))
	cert, key := testcert.Write(t, dir, "client", ca.Sign(t, "client", nil, nil))
	members := kvtest.StartCluster(t, memberVariable, 1, func(configs []kvtest.MemberConfig) {
		configs[0].CA, configs[0].Cert, configs[0].Key = caFile, serverCert, serverKey
		configs[0].Client = strings.Replace(configs[0].Client, "http:", "https:", 1)
	})
	good := snapshot.Source{Endpoints: kvtest.URLs(members), CAFile: caFile, CertFile: cert, KeyFile: key}
	if _, err := snapshot.Save(t.Context(), good, filepath.Join(dir, "backup")); err != nil {
		t.Error(err)
	}
	for name, bad := range map[string]snapshot.Source{
		"unknown authority": {Endpoints: good.Endpoints, CAFile: strangerFile, CertFile: cert, KeyFile: key},
		"missing":           {Endpoints: good.Endpoints, CAFile: "missing"},
	} {
		if _, err := snapshot.Save(t.Context(), bad, filepath.Join(dir, "no")); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("Save: got error %v, want %s", err, name)
		}
	}
}

// TestClustersAreRestored saves a cluster with one member down through another member, and restores all members.
// Without a majority saving must fail, because the remaining member may lack acknowledged writes.
func TestClustersAreRestored(t *testing.T) {
	if testing.Short() {
		t.Skip("takes six seconds: it starts, kills and restores three etcd members")
	}
	members := kvtest.StartCluster(t, memberVariable, 3, kvtest.LengthenElectionTimeout)
	outsider := kvtest.NewClient(t, kvtest.URLs(members))
	proctest.Eventually(t, "a member leads", func() error {
		leader, err := outsider.Leader(t.Context())
		if err == nil { // the leader is killed last, so that no election is needed
			at := slices.Index(kvtest.URLs(members), leader)
			members[at], members[2] = members[2], members[at]
		}
		return err
	})
	if _, _, err := outsider.Transact(t.Context(), []kvtest.Change{{Key: "/registry/a", Value: []byte("1")}}); err != nil {
		t.Fatal(err)
	}
	members[0].Kill()
	path := filepath.Join(t.TempDir(), "backup")
	if _, err := snapshot.Save(t.Context(), snapshot.Source{Endpoints: kvtest.URLs(members)}, path); err != nil {
		t.Fatal(err)
	}
	members[1].Kill()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, err := snapshot.Save(ctx, snapshot.Source{Endpoints: kvtest.URLs(members[2:])}, path+"2"); err == nil {
		t.Error("Save from a member without a majority succeeded")
	}
	if _, err := snapshot.Save(t.Context(), snapshot.Source{Endpoints: kvtest.URLs(members[:2])}, path+"3"); err == nil || strings.Count(err.Error(), "connection refused") != 2 {
		t.Errorf("Save from members that are down: got error %v, want one with both failed connections", err)
	}
	members[2].Kill()
	for _, m := range members {
		if err := os.RemoveAll(m.Config.Dir); err != nil {
			t.Fatal(err)
		}
		if _, err := snapshot.Restore(t.Context(), snapshot.RestoreConfig{Path: path, Dir: m.Config.Dir, Bump: 1000, Member: snapshot.Member{
			Name: m.Config.Name, Peer: m.Config.Peer, Cluster: m.Config.Cluster, Token: "again",
		}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range members {
		if err := m.Start(); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range members {
		m.AwaitReady(t)
	}
	items, err := outsider.Items(t.Context(), "/registry/")
	if err != nil || len(items) != 1 || string(items[0].Value) != "1" {
		t.Errorf("the restored cluster has %v, error %v; want one item", items, err)
	}
}
