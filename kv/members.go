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
	// statusTimeout bounds one request for a member's version.
	statusTimeout = 3 * time.Second
	// statusRounds is how often each endpoint is queried, because there may be several members behind it.
	statusRounds = 3
)

// errUntrusted ends a stream of a member whose progress notifications are unreliable.
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
}

// identify requests the version of a member that serves a newly opened stream, and reports whether its
// progress reports can be trusted.
func (m *members) identify(ctx context.Context, member uint64) bool {
	version := m.version(ctx, member)
	if ctx.Err() != nil {
		return false
	}
	trusted := hasReliableProgress(version)
	// A server without member ids is another implementation of etcd's API. It may not report the progress of all
	// revisions.
	if (!trusted || member == 0) && !m.allKeys.Swap(true) {
		m.logger.Info("watching all keys of etcd, because its progress notifications are unreliable", "version", version)
	}
	return trusted
}

// version queries all endpoints concurrently and returns the first version that is the member's, "" if there is none.
// So an endpoint that does not respond delays only its own member.
func (m *members) version(ctx context.Context, member uint64) string {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var found atomic.Value // of string
	var group sync.WaitGroup
	for _, endpoint := range m.endpoints() {
		group.Go(func() {
			for round := 0; round < statusRounds && ctx.Err() == nil; round++ {
				if response := m.requestStatus(ctx, endpoint); response != nil && response.Header.GetMemberId() == member {
					found.Store(response.Version)
					cancel()
				}
			}
		})
	}
	group.Wait()
	version, _ := found.Load().(string)
	return version
}

// requestStatus returns nil if the endpoint does not respond.
func (m *members) requestStatus(ctx context.Context, endpoint string) *clientv3.StatusResponse {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	response, err := m.status(ctx, endpoint)
	if err != nil {
		m.logger.Debug("etcd does not report its version", "endpoint", endpoint, "error", err)
		return nil
	}
	return response
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
