package kv

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-semver/semver"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// statusTimeout bounds the question for a member's version.
	statusTimeout = 3 * time.Second
	// statusRounds is how often all endpoints are asked for the member that serves a
	// watch: behind one endpoint there may be several.
	statusRounds = 3
)

// errUnsound ends a stream whose member's progress is not to be believed.
var errUnsound = errors.New("kv: the member's reports of progress cannot be trusted")

// members knows which members of a cluster can be believed when they report progress.
//
// Members below etcd 3.4.31 and 3.5.13 may report it ahead of events (K4 would be
// broken, and events lost when the watch is opened again). A watch of such a member,
// or of one that nobody knows the version of, goes by events alone: it watches the
// whole key space, where each revision has an event, and so sees every revision come.
//
// A member is asked anew for each stream, after that was opened, because only what
// runs now is known to serve it: another version may take its place at any time.
type members struct {
	endpoints func() []string
	status    func(ctx context.Context, endpoint string) (*clientv3.StatusResponse, error)
	logger    *slog.Logger
	// wide says that streams are to watch everything. It is never taken back: to watch
	// too much costs little.
	wide atomic.Bool

	mu     sync.Mutex // held while members are asked
	latest map[uint64]memberStatus
}

// memberStatus is what a member said.
type memberStatus struct {
	asked   time.Time // when the question went out
	version string
}

// identify learns the version of the member that has opened a stream by now, and
// reports whether its progress can be believed.
func (m *members) identify(ctx context.Context, member uint64) bool {
	opened := time.Now()
	version, known := m.version(ctx, member, opened)
	if ctx.Err() != nil {
		return false
	}
	sound := known && soundProgress(version)
	// Who has no member ids is not etcd: what imitates it may keep revisions without
	// events to itself until it is asked at the right moment.
	if (!sound || member == 0) && !m.wide.Swap(true) {
		m.logger.Info("all keys of etcd are watched, because its reports of progress do not suffice", "version", version)
	}
	return sound
}

// version asks all endpoints at once, unless others have done so since opened.
func (m *members) version(ctx context.Context, member uint64, opened time.Time) (string, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for range statusRounds {
		if status, ok := m.latest[member]; ok && !status.asked.Before(opened) {
			return status.version, true
		}
		if ctx.Err() != nil {
			break
		}
		m.askLocked(ctx)
	}
	status, ok := m.latest[member]
	return status.version, ok && !status.asked.Before(opened)
}

func (m *members) askLocked(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	asked := time.Now()
	endpoints := m.endpoints()
	answers := make([]*clientv3.StatusResponse, len(endpoints))
	var group sync.WaitGroup
	for i, endpoint := range endpoints {
		group.Go(func() {
			answer, err := m.status(ctx, endpoint)
			if err != nil {
				m.logger.Debug("etcd does not tell its version", "endpoint", endpoint, "error", err)
				return
			}
			answers[i] = answer
		})
	}
	group.Wait()
	m.latest = make(map[uint64]memberStatus)
	for _, answer := range answers {
		if answer != nil {
			m.latest[answer.Header.GetMemberId()] = memberStatus{asked: asked, version: answer.Version}
		}
	}
}

// soundProgress reports whether a version of etcd reports no progress ahead of events
// (apiserver pkg/storage/feature/feature_support_checker.go).
func soundProgress(version string) bool {
	v, err := semver.NewVersion(version)
	switch {
	case err != nil:
		return false
	case v.LessThan(semver.Version{Major: 3, Minor: 5}):
		return !v.LessThan(semver.Version{Major: 3, Minor: 4, Patch: 31})
	}
	return !v.LessThan(semver.Version{Major: 3, Minor: 5, Patch: 13})
}
