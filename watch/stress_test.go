package watch_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/watch"
	"github.com/larder-io/larder/watch/watchtest"
)

// TestConcurrentWatchersKeepTheGuarantees has clients with every filter open, read at different rates, close and resume
// watches. Meanwhile revisions are written as fast as possible, and the cache is sometimes reloaded. The deliveries of
// each watch are checked against the history of its epoch.
func TestConcurrentWatchersKeepTheGuarantees(t *testing.T) {
	for _, c := range []config{
		{backlog: 1000, events: 10000},
		{backlog: 3, events: 10000},
		{backlog: 3, events: 48},
	} {
		t.Run(fmt.Sprintf("backlog %d of %d", c.backlog, c.events), func(t *testing.T) {
			t.Parallel()
			newStress(t, c).run()
		})
	}
}

const (
	stressRevisions = 1800
	stressEpochs    = 3
	clientsPerKind  = 2
)

type stress struct {
	*fixture
	t      *testing.T
	epochs [stressEpochs + 1]*watchtest.History // by epoch, from 1
	over   chan struct{}                        // closed after the last write, when the hub has published all events
	final  int64                                // the last revision; set before over is closed

	mu      sync.Mutex
	streams []stream
	ended   map[string]int
}

// stream is one watch, from open to end.
type stream struct {
	filter  filter
	checker *watchtest.Checker
	epoch   uint64
	upTo    int64
}

func newStress(t *testing.T, c config) *stress {
	return &stress{fixture: newFixture(t, c), t: t, over: make(chan struct{}), ended: make(map[string]int)}
}

func (s *stress) run() {
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	var hub, clients sync.WaitGroup
	hub.Go(func() { _ = s.hub.Run(ctx) })
	s.newEpoch()
	for i, f := range filters {
		for j := range clientsPerKind {
			rnd := rand.New(rand.NewPCG(uint64(i), uint64(j)))
			clients.Go(func() { s.client(f, rnd) })
		}
	}
	s.write(rand.New(rand.NewPCG(1, 2)))
	clients.Wait()
	cancel()
	hub.Wait()
	s.check()
}

func (s *stress) newEpoch() {
	s.reset()
	s.epochs[s.cache.Snapshot().Epoch()] = s.history
}

func (s *stress) write(rnd *rand.Rand) {
	for epoch := range stressEpochs {
		if epoch > 0 {
			s.newEpoch()
		}
		for range stressRevisions / stressEpochs {
			s.change(rnd)
		}
	}
	for revision := s.last; s.cache.Log().Next() != s.hub.Published(); {
		runtime.Gosched()
		if s.last != revision {
			s.t.Error("another goroutine writes")
		}
	}
	s.final = s.last
	close(s.over)
}

// change writes one revision of up to three objects.
func (s *stress) change(rnd *rand.Rand) {
	var changes []change
	for _, i := range rnd.Perm(len(namespacedKeys))[:1+rnd.IntN(3)] {
		changes = append(changes, change{
			key:    namespacedKeys[i],
			gone:   rnd.IntN(4) == 0,
			labels: []string{"", "app=x", "app=y", "app=x,tier=t"}[rnd.IntN(4)],
			fields: []string{"", "spec.nodeName=n1", "spec.nodeName=n2,phase=up", "spec.nodeName=n1,phase=up"}[rnd.IntN(4)],
		})
	}
	s.apply(changes...)
	if rnd.IntN(8) == 0 {
		s.fresh.Store(s.last)
	}
	if rnd.IntN(4) == 0 {
		runtime.Gosched()
	}
}

// client watches until it has received all events.
func (s *stress) client(f filter, rnd *rand.Rand) {
	resume := int64(-1)
	for {
		st, w, err := s.open(f, resume)
		if errors.As(err, new(cache.ErrTooOld)) {
			resume = -1
			continue
		}
		if err != nil {
			s.t.Error(err)
			return
		}
		done, err := s.follow(&st, w, rnd)
		w.Close()
		s.record(st, err)
		if done {
			return
		}
		resume = st.checker.Resume()
		if err != nil {
			resume = -1
		}
	}
}

// open begins a watch. If after is negative, it starts with the initial objects.
func (s *stress) open(f filter, after int64) (stream, *watch.Watcher, error) {
	o := f.options()
	request := watchtest.Request{Selects: f.predicate(), After: after, Resumed: true}
	snapshot := s.cache.Snapshot()
	if o.After = after; after < 0 {
		o.Initial = &snapshot
		request = watchtest.Request{Selects: f.predicate(), Initial: true, At: snapshot.Revision()}
	}
	w, err := s.hub.Watch(o)
	if err != nil {
		return stream{}, nil, err
	}
	epoch := snapshot.Epoch()
	if now := s.cache.Snapshot().Epoch(); after >= 0 && now != epoch {
		w.Close()
		return stream{}, nil, cache.ErrTooOld{}
	}
	return stream{filter: f, checker: watchtest.NewChecker(request), epoch: epoch}, w, nil
}

// follow reads a random number of batches, or until the client has all events.
func (s *stress) follow(st *stream, w *watch.Watcher, rnd *rand.Rand) (done bool, err error) {
	for patience := 5 + rnd.IntN(100); ; patience-- {
		over := s.isOver()
		ds, err := w.Poll(make([]watch.Delivery, 0, 1+rnd.IntN(20)))
		if err != nil {
			return false, err
		}
		st.checker.Observe(reports(ds)...)
		if rnd.IntN(10) == 0 {
			runtime.Gosched() // a slow client
		}
		if len(ds) > 0 {
			continue
		}
		if b, ok := w.Bookmark(); ok {
			st.checker.Observe(reportOf(b))
			if over && b.Revision >= s.final {
				st.upTo = b.Revision
				return true, nil
			}
		}
		if patience < 0 && !over {
			return false, nil
		}
		select {
		case <-w.Ready():
		case <-s.over:
		}
	}
}

func (s *stress) isOver() bool {
	select {
	case <-s.over:
		return true
	default:
		return false
	}
}

func (s *stress) record(st stream, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams = append(s.streams, st)
	switch {
	case err == nil:
		s.ended["closed"]++
	case err == io.EOF:
		s.ended["end of epoch"]++
	case errors.As(err, new(cache.ErrTooOld)):
		s.ended["lapped"]++
	default:
		s.t.Errorf("%+v ended: %v", st.filter, err)
	}
}

func (s *stress) check() {
	for _, st := range s.streams {
		if err := st.checker.Verify(s.epochs[st.epoch], st.upTo); err != nil {
			s.t.Errorf("%+v in epoch %d: %.500v", st.filter, st.epoch, err)
		}
	}
	s.t.Logf("%d watches: %v; %+v", len(s.streams), s.ended, s.hub.Stats())
	if s.ended["closed"] < len(filters)*clientsPerKind {
		s.t.Errorf("%d watches were closed by their clients, want at least %d", s.ended["closed"], len(filters)*clientsPerKind)
	}
}
