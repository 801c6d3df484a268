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
	// statusTimeout bounds a request for a member's version, and silentTimeout one to an
	// endpoint that let such a request time out before.
	statusTimeout = 300 * time.Millisecond
	silentTimeout = 3 * time.Second
	// statusRounds is how often all endpoints are asked for the member that serves a
	// watch: behind one endpoint there may be several.
	statusRounds = 3
)

// errUnsound ends a stream whose member's progress is not to be believed.
var errUnsound = errors.New("kv: the member's reports of progress cannot be trusted")

// members knows which members of a cluster can be believed when they report progress.
//
// Members before etcd 3.4.31 and 3.5.13 may report it ahead of events (K4 would be
// broken, and events lost when the watch is opened again). A watch of such a member,
// or of one whose version is not known, goes by events alone: it watches the whole key
// space, where each revision has an event, and so sees every revision come.
//
// A member is asked again for each stream, after the stream was opened: a member can be
// upgraded or downgraded at any time, and only one that answers now serves this stream.
type members struct {
	endpoints func() []string
	status    func(ctx context.Context, endpoint string) (*clientv3.StatusResponse, error)
	logger    *slog.Logger
	// wide says that streams are to watch the whole key space. It is never unset: watching
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
	// silent says that the last request to it timed out. Guarded by members.mu.
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
	// A server without member ids is not etcd but an imitation. It may report the progress
	// of revisions without events only at the right moment, or not at all.
	if (!sound || member == 0) && !m.wide.Swap(true) {
		m.logger.Info("all keys of etcd are watched, because its reports of progress do not suffice", "version", version)
	}
	return sound
}

// version asks the endpoints until one answers for the member, unless the member has
// answered another stream since opened. An endpoint that does not answer must not delay the
// others: it is asked last, when none of them has led to the member.
func (m *members) version(ctx context.Context, member uint64, opened time.Time) (string, bool) {
	for range statusRounds {
		if version, known := m.ask(ctx, m.list(false), statusTimeout, member, opened); known || ctx.Err() != nil {
			return version, known
		}
	}
	silent := m.list(true)
	for range statusRounds {
		if version, known := m.ask(ctx, silent, silentTimeout, member, opened); known || ctx.Err() != nil {
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

// errSilent is the cause of the timeout of ask.
var errSilent = errors.New("kv: no answer")

// ask asks all of the endpoints at the same time, and waits for no more of them once one
// has answered for the member.
func (m *members) ask(ctx context.Context, endpoints []*endpoint, timeout time.Duration, member uint64, opened time.Time) (string, bool) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errSilent)
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

// askOne asks one endpoint. Streams that open at the same time do so one after the other,
// and the first answer that came after they opened serves all of them.
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

// heard takes in the answer of an endpoint, nil if there was none.
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
	maps.DeleteFunc(m.latest, func(_ uint64, status memberStatus) bool { // no stream waits for them any more
		return status.asked.Before(asked.Add(-2 * statusRounds * silentTimeout))
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
