package embedded

import (
	"context"
	"errors"
	"expvar"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/storage/datadir"
	"go.etcd.io/raft/v3"
	"go.uber.org/zap"

	"github.com/larder-io/larder/internal/proctest"
)

// TestStartsDoNotWaitForATick starts a server whose first tick comes after ten seconds. The directory is new, used, or
// restored from a backup. On a slow machine an attempt may take longer, so one of three attempts must be fast.
func TestStartsDoNotWaitForATick(t *testing.T) {
	const tick = 10 * time.Second
	dir := ""
	for _, name := range []string{"new", "used", "restored"} {
		took := make([]time.Duration, 0, 3)
		for range cap(took) {
			switch name {
			case "new":
				dir = t.TempDir()
			case "restored":
				dir = restored(t, dir)
			}
			took = append(took, startTime(t, dir, tick))
			if took[len(took)-1] < tick {
				break
			}
		}
		if last := took[len(took)-1]; last >= tick {
			t.Errorf("%s directory: starts took %v, want one below the tick of %v", name, took, tick)
		}
	}
}

// restored restores the database of a stopped server into a new directory.
func restored(t *testing.T, from string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "restored")
	err := snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: datadir.ToBackendFileName(from), SkipHashCheck: true, OutputDataDir: to,
		Name: MemberName, PeerURLs: []string{MemberPeer}, InitialCluster: MemberName + "=" + MemberPeer, InitialClusterToken: "etcd-cluster",
	})
	if err != nil {
		t.Fatal(err)
	}
	return to
}

// TestServerBesideAnotherVoterWaitsForTheElectionTimeout starts a server whose cluster got a second voter, which never
// started. An immediate election could make a leader step down.
func TestServerBesideAnotherVoterWaitsForTheElectionTimeout(t *testing.T) {
	dir := t.TempDir()
	server, err := startServer(t.Context(), testConfig(t, dir, 100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	other := membership.NewMember("other", types.MustNewURLs([]string{"http://127.0.0.1:1"}), "", nil)
	_, err = server.Server.AddMember(t.Context(), *other)
	server.Server.HardStop() // the other cannot take over the leadership
	server.Close()
	if err != nil {
		t.Fatal(err)
	}
	if server, err = startEtcd(testConfig(t, dir, 100*time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	status := func() raft.Status { return expvar.Get("raft.status").(expvar.Func).Value().(raft.Status) }
	proctest.Eventually(t, "the log is applied", func() error {
		if s := status(); s.Applied == 0 || s.Applied != s.GetCommit() || s.Applied != server.Server.AppliedIndex() {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	term := status().GetTerm()
	if err := elect(t.Context(), server.Server); err != nil {
		t.Error(err)
	}
	if s := status(); s.GetTerm() != term || len(s.Config.Voters.IDs()) != 2 {
		t.Errorf("the term was %d, and the status is now %+v; want the same term and 2 voters", term, s)
	}
	server.Server.HardStop()
	server.Close()
	// Without the other voter the server never becomes ready, and startServer returns when its context ends.
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := startServer(ctx, testConfig(t, dir, 100*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("start without the other voter: got error %v, want DeadlineExceeded", err)
	}
}

// startTime starts and stops a server, and returns how long it took to start.
func startTime(t *testing.T, dir string, tick time.Duration) time.Duration {
	t.Helper()
	config := testConfig(t, dir, tick)
	ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
	defer cancel()
	began := time.Now()
	server, err := startServer(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	return time.Since(began)
}

// testConfig returns the configuration of a server with other ticks.
func testConfig(t *testing.T, dir string, tick time.Duration) *embed.Config {
	t.Helper()
	cfg := Config{Dir: dir, UnsafeNoFsync: true, Fatal: func(err error) { t.Error(err) }}
	cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	config, err := serverConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	config.TickMs, config.ElectionMs = uint(tick.Milliseconds()), uint(5*tick.Milliseconds())
	return config
}
