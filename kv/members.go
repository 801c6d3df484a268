package kv

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-semver/semver"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// statusTimeout bounds the question for a member's version.
	statusTimeout = 3 * time.Second
	// statusPatience is how long an endpoint is waited for while others may tell.
	statusPatience = 300 * time.Millisecond
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

	mu     sync.Mutex
	latest map[uint64]memberStatus // by member
	asked  map[string]*endpoint
}

// memberStatus is what a member said.
type memberStatus struct {
	asked   time.Time // when the question went out
	version string
}

// endpoint is where members are asked.
type endpoint struct {
	url  string
	turn chan struct{} // has an element while it is asked
	// silent says that nothing came of the last question that was not given up before;
	// guarded by members.mu.
	silent bool
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
	// A server without member ids is not etcd but imitates it. Such a server may not tell
	// of revisions without events until it is asked at the right moment.
	if (!sound || member == 0) && !m.wide.Swap(true) {
		m.logger.Info("all keys of etcd are watched, because its reports of progress do not suffice", "version", version)
	}
	return sound
}

// version asks the endpoints until one answers for the member, unless that was asked
// since opened for others. An endpoint that swallows what it is asked must not delay what
// the others tell: it is waited for last, when none of them knows the member.
func (m *members) version(ctx context.Context, member uint64, opened time.Time) (string, bool) {
	for range statusRounds {
		if version, known := m.ask(ctx, m.list(false), statusPatience, member, opened); known || ctx.Err() != nil {
			return version, known
		}
	}
	silent := m.list(true)
	for range statusRounds {
		if version, known := m.ask(ctx, silent, statusTimeout, member, opened); known || ctx.Err() != nil {
			return version, known
		}
	}
	return "", false
}

// list returns the endpoints that were silent, or the others.
func (m *members) list(silent bool) []*endpoint {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.asked == nil {
		m.asked = make(map[string]*endpoint)
	}
	var list []*endpoint
	for _, url := range m.endpoints() {
		e := m.asked[url]
		if e == nil {
			e = &endpoint{url: url, turn: make(chan struct{}, 1)}
			m.asked[url] = e
		}
		if e.silent == silent {
			list = append(list, e)
		}
	}
	return list
}

// errSilent ends the wait for endpoints.
var errSilent = errors.New("kv: no answer")

// ask asks endpoints at once, and waits for no more of them once one has answered for
// the member.
func (m *members) ask(ctx context.Context, endpoints []*endpoint, patience time.Duration, member uint64, opened time.Time) (string, bool) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errSilent)
	defer cancel()
	var group sync.WaitGroup
	for _, e := range endpoints {
		group.Go(func() {
			m.askOne(ctx, e, member, opened)
			if _, known := m.known(member, opened); known {
				cancel()
			}
		})
	}
	group.Wait()
	return m.known(member, opened)
}

// askOne asks an endpoint in its turn, so that many streams that open at once do not ask
// it as often: the first answer after that is for all of them.
func (m *members) askOne(ctx context.Context, e *endpoint, member uint64, opened time.Time) {
	select {
	case e.turn <- struct{}{}:
		defer func() { <-e.turn }()
	case <-ctx.Done():
		m.heard(ctx, e, time.Time{}, nil)
		return
	}
	if _, known := m.known(member, opened); known {
		return
	}
	asked := time.Now()
	answer, err := m.status(ctx, e.url)
	if err != nil {
		answer = nil
		m.logger.Debug("etcd does not tell its version", "endpoint", e.url, "error", err)
	}
	m.heard(ctx, e, asked, answer)
}

// heard takes in what an endpoint answered; nil is nothing.
func (m *members) heard(ctx context.Context, e *endpoint, asked time.Time, answer *clientv3.StatusResponse) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if answer == nil {
		e.silent = e.silent || errors.Is(context.Cause(ctx), errSilent)
		return
	}
	e.silent = false
	id := answer.Header.GetMemberId()
	if m.latest == nil {
		m.latest = make(map[uint64]memberStatus)
	}
	if asked.After(m.latest[id].asked) {
		m.latest[id] = memberStatus{asked: asked, version: answer.Version}
	}
	maps.DeleteFunc(m.latest, func(_ uint64, status memberStatus) bool { // who waits for less has left
		return status.asked.Before(asked.Add(-2 * statusRounds * statusTimeout))
	})
}

// known returns the version that a member told when it was asked since opened.
func (m *members) known(member uint64, opened time.Time) (string, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	status, ok := m.latest[member]
	return status.version, ok && !status.asked.Before(opened)
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
