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
	"golang.org/x/sync/semaphore"
)

const (
	// statusTimeout bounds one request for a member's version.
	statusTimeout = 3 * time.Second
	// statusRounds is how often each endpoint is queried, because there may be several members behind it.
	statusRounds = 3
)

// errUnsound ends a stream of a member whose progress notifications are unreliable.
var errUntrusted = errors.New("kv: the member's progress notifications are unreliable")

// members determines which members' progress reports can be trusted.
//
// Members before etcd 3.4.31 and 3.5.13 may report progress ahead of events, which would break K4. A watch of such a
// member, or of one of unknown version, watches the whole key space, where each revision has an event, and ignores
// progress reports.
//
// A member can be upgraded or downgraded at any time, so its version is requested again after each stream was opened.
type members struct {
	endpoints func() []string
	status    func(ctx context.Context, endpoint string) (*clientv3.StatusResponse, error)
	logger    *slog.Logger
	// allKeys says that streams must watch the whole key space. It is never unset.
	allKeys atomic.Bool
	locks   sync.Map // of *semaphore.Weighted(1), by endpoint: a lock with a context

	mu     sync.Mutex
	latest map[uint64]memberStatus // by member
}

// memberStatus is the version that a member reported.
type memberStatus struct {
	sent    time.Time // when the request was sent
	version string
}

// identify gets the version of a member that serves a newly opened stream, and reports whether its
// progress reports can be trusted.
func (m *members) identify(ctx context.Context, member uint64) bool {
	version, known := m.version(ctx, member, time.Now())
	if ctx.Err() != nil {
		return false
	}
	trusted := known && hasReliableProgress(version)
	// A server without member ids is another implementation of etcd's API. It may not report the progress of all
	// revisions.
	if (!trusted || member == 0) && !m.allKeys.Swap(true) {
		m.logger.Info("watching all keys of etcd, because its progress notifications are unreliable", "version", version)
	}
	return trusted
}

// version queries all endpoints concurrently and returns once one has responded for the member. So an endpoint that
// does not respond delays only its own member.
func (m *members) version(ctx context.Context, member uint64, opened time.Time) (string, bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var group sync.WaitGroup
	for _, endpoint := range m.endpoints() {
		group.Go(func() {
			for range statusRounds {
				m.requestVersion(ctx, endpoint, member, opened)
				if _, known := m.known(member, opened); known {
					cancel()
				}
				if ctx.Err() != nil {
					return
				}
			}
		})
	}
	group.Wait()
	return m.known(member, opened)
}

// requestVersion requests the version from one endpoint. Concurrent callers share the first response.
func (m *members) requestVersion(ctx context.Context, endpoint string, member uint64, opened time.Time) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	value, _ := m.locks.LoadOrStore(endpoint, semaphore.NewWeighted(1))
	lock := value.(*semaphore.Weighted)
	if lock.Acquire(ctx, 1) != nil {
		return
	}
	defer lock.Release(1)
	if _, known := m.known(member, opened); known {
		return
	}
	sent := time.Now()
	response, err := m.status(ctx, endpoint)
	if err != nil {
		m.logger.Debug("etcd does not report its version", "endpoint", endpoint, "error", err)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.latest == nil {
		m.latest = make(map[uint64]memberStatus)
	}
	if id := response.Header.GetMemberId(); sent.After(m.latest[id].sent) {
		m.latest[id] = memberStatus{sent: sent, version: response.Version}
	}
}

// known returns the version of a member, if a request sent after opened has returned it.
func (m *members) known(member uint64, opened time.Time) (string, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	status, ok := m.latest[member]
	return status.version, ok && !status.sent.Before(opened)
}

// hasReliableProgress reports whether a version of etcd reports no progress ahead of events
// (apiserver pkg/storage/feature/feature_support_checker.go).
func hasReliableProgress(version string) bool {
	v, err := semver.NewVersion(version)
	switch {
	case err != nil:
		return false
	case v.LessThan(semver.Version{Major: 3, Minor: 5}):
		return !v.LessThan(semver.Version{Major: 3, Minor: 4, Patch: 31})
	}
	return !v.LessThan(semver.Version{Major: 3, Minor: 5, Patch: 13})
}
