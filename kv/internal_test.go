package kv

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"pgregory.net/rapid"

	"github.com/larder-io/larder/internal/proctest"
)

// TestPrefixEndsBeforeTheNextKey checks that a key is in the range of a prefix exactly if it has that prefix.
func TestPrefixEndsBeforeTheNextKey(t *testing.T) {
	alphabet := rapid.StringOfN(rapid.RuneFrom([]rune{'/', '0', 'a'}), 0, 3, -1)
	tail := rapid.SampledFrom([]string{"", "\x00", "\xff", "\xff\xff", "a\xff"})
	rapid.Check(t, func(t *rapid.T) {
		prefix := alphabet.Draw(t, "prefix") + tail.Draw(t, "prefix end")
		key := alphabet.Draw(t, "key") + tail.Draw(t, "key end") + alphabet.Draw(t, "key rest")
		end := clientv3.GetPrefixRangeEnd(prefix)
		in := key >= prefix && (end == "\x00" || key < end)
		if has := strings.HasPrefix(key, prefix); in != has {
			t.Errorf("%q in [%q, %q) is %v, has prefix is %v", key, prefix, end, in, has)
		}
	})
}

// TestEventsAreBatchedByRevision checks that batches have exactly the new events, in order, and one batch for each
// revision.
func TestEventsAreBatchedByRevision(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var events []*mvccpb.Event
		revision := int64(10)
		for range rapid.IntRange(0, 8).Draw(t, "events") {
			revision += rapid.Int64Range(0, 2).Draw(t, "step")
			event := &mvccpb.Event{Kv: &mvccpb.KeyValue{Key: []byte("k"), Value: []byte("v"), ModRevision: revision, CreateRevision: revision}}
			switch rapid.IntRange(0, 2).Draw(t, "kind") {
			case 1:
				event.Kv.CreateRevision = 5
			case 2:
				event.Type, event.Kv.CreateRevision, event.Kv.Value = mvccpb.Event_DELETE, 0, nil
			}
			events = append(events, event)
		}
		after := rapid.Int64Range(8, 16).Draw(t, "after")
		var got []Event
		last := after
		for _, batch := range batchesOf(events, after) {
			if batch.Revision <= last || len(batch.Events) == 0 || cap(batch.Events) != len(batch.Events) {
				t.Fatalf("batch %+v after %d", batch, last)
			}
			last = batch.Revision
			for _, event := range batch.Events {
				if event.Revision != batch.Revision {
					t.Fatalf("event %+v in batch of %d", event, batch.Revision)
				}
			}
			got = append(got, batch.Events...)
		}
		var want []Event
		for _, event := range events {
			if event.Kv.ModRevision > after {
				want = append(want, eventOf(event))
			}
		}
		same := func(a, b Event) bool {
			return a.Key == b.Key && a.Revision == b.Revision && a.Kind == b.Kind && string(a.Value) == string(b.Value)
		}
		if !slices.EqualFunc(got, want, same) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	})
}

// TestTermIsTakenFromASecondResponse checks that the term comes from the second response of a member. A member that has
// received a snapshot responds once with its old term before it adopts the current one. The members respond in turn.
func TestTermIsTakenFromASecondResponse(t *testing.T) {
	type response struct{ member, term uint64 }
	for name, responses := range map[string][]response{
		"one member":              {{1, 4}, {1, 5}},
		"second member is behind": {{1, 5}, {2, 4}, {3, 5}, {1, 5}},
		"first member is behind":  {{2, 4}, {1, 5}, {3, 5}, {2, 5}},
		"third member is behind":  {{1, 5}, {3, 5}, {2, 4}, {1, 5}},
		"two members are behind":  {{2, 4}, {3, 4}, {2, 5}},
	} {
		t.Run(name, func(t *testing.T) {
			sent := 0
			got, err := secondResponse(func() (*etcdserverpb.ResponseHeader, error) {
				r := responses[sent]
				sent++
				return &etcdserverpb.ResponseHeader{MemberId: r.member, RaftTerm: r.term}, nil
			})
			if err != nil || got.RaftTerm != 5 || sent != len(responses) {
				t.Errorf("got %v and error %v after %d responses, want term 5 after %d", got, err, sent, len(responses))
			}
		})
	}
	next := uint64(0)
	if got, err := secondResponse(func() (*etcdserverpb.ResponseHeader, error) {
		next++
		return &etcdserverpb.ResponseHeader{MemberId: next}, nil
	}); err == nil {
		t.Errorf("got %v from members that never respond twice, want an error", got)
	}
	if _, err := secondResponse(func() (*etcdserverpb.ResponseHeader, error) { return nil, errors.ErrUnsupported }); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
}

func TestHistoryDetectsReplacements(t *testing.T) {
	header := func(cluster uint64, revision int64, term uint64) *etcdserverpb.ResponseHeader {
		return &etcdserverpb.ResponseHeader{ClusterId: cluster, Revision: revision, RaftTerm: term}
	}
	for _, c := range []struct {
		name   string
		header *etcdserverpb.ResponseHeader
		want   verdict
	}{
		{"the same", header(1, 100, 5), same},
		{"later", header(1, 101, 6), same},
		{"lower revision", header(1, 99, 5), replaced},
		{"lower term", header(1, 200, 4), doubtful},
		{"another cluster", header(2, 200, 6), replaced},
	} {
		t.Run(c.name, func(t *testing.T) {
			var h history
			early := h.mark()
			if h.observe(h.mark(), header(1, 100, 5)) != same {
				t.Fatal("the first response replaced the history")
			}
			if h.observe(early, header(1, 50, 4)) != same {
				t.Error("the response to an earlier request replaced the history")
			}
			first, second := h.mark(), h.mark()
			got := h.observe(first, c.header)
			if got != c.want {
				t.Errorf("got verdict %d, want %d", got, c.want)
			}
			if got == doubtful {
				if h.decide(first, header(1, 200, 5)) != same {
					t.Error("a response of the current term did not resolve the doubt")
				}
				if h.decide(first, c.header) != replaced {
					t.Error("a confirmed old term did not replace the history")
				}
			}
			if h.decide(second, c.header) != same {
				t.Error("one replacement was reported twice")
			}
			if h.observe(h.mark(), c.header) != same {
				t.Error("the new history was replaced by itself")
			}
		})
	}
}

// TestLateResponsesOfAReplacedHistory checks that they do not affect the new one.
func TestLateResponsesOfAReplacedHistory(t *testing.T) {
	header := func(revision int64, term uint64) *etcdserverpb.ResponseHeader {
		return &etcdserverpb.ResponseHeader{ClusterId: 1, Revision: revision, RaftTerm: term}
	}
	var h history
	h.observe(h.mark(), header(100, 5))
	late := h.mark()
	if h.observe(h.mark(), header(10, 2)) != replaced {
		t.Fatal("the history was not replaced")
	}
	if h.observe(late, header(101, 6)) != same || h.observe(h.mark(), header(11, 2)) != same {
		t.Error("a response of the old history replaced the new one")
	}
	if mark := h.mark(); mark.revision != 11 || mark.term != 2 {
		t.Errorf("the history is at %+v, want revision 11 and term 2", mark)
	}
}

// TestConcurrentFirstResponsesAreNoReplacement has several requests receive the first response.
func TestConcurrentFirstResponsesAreNoReplacement(t *testing.T) {
	first := &etcdserverpb.ResponseHeader{ClusterId: 1, Revision: 100, RaftTerm: 5}
	for range 5000 {
		var h history
		var group sync.WaitGroup
		begin := make(chan struct{})
		for range 4 {
			group.Go(func() {
				mark := h.mark()
				<-begin
				if h.observe(mark, first) != same {
					t.Error("the first response replaced the history")
				}
			})
		}
		close(begin)
		group.Wait()
	}
}

// TestRevisionReaderSharesReads checks that concurrent callers share a read, but not one that began before their call.
func TestRevisionReaderSharesReads(t *testing.T) {
	r := revisionReader{kick: make(chan struct{}, 1)}
	if r.join() != nil {
		t.Fatal("the first caller does not read by itself")
	}
	first := r.join()
	if first == nil || r.join() != first {
		t.Error("two callers that wait do not share a read")
	}
	if len(r.kick) != 0 {
		t.Error("a second read begins before the first has ended")
	}
	r.end()
	if len(r.kick) != 1 || r.take() != first {
		t.Error("the next read is not the one that the callers wait for")
	}
	second := r.join()
	if second == nil || second == first {
		t.Error("a caller joined a read that had begun")
	}
	if r.take() != second || r.take() != nil || r.join() != nil {
		t.Error("after all reads, the next caller does not read by itself")
	}
	r.end()
	if len(r.kick) != 1 || r.busy { // the kick is from the first end
		t.Error("still busy")
	}
}

// grants is a clientv3.Lease that counts its calls.
type grants struct {
	clientv3.Lease
	ttls []int64
	err  error
}

func (g *grants) Grant(_ context.Context, ttl int64) (*clientv3.LeaseGrantResponse, error) {
	if g.err != nil {
		return nil, g.err
	}
	g.ttls = append(g.ttls, ttl)
	return &clientv3.LeaseGrantResponse{ID: clientv3.LeaseID(len(g.ttls)), TTL: ttl}, nil
}

func TestLeasesAreReused(t *testing.T) {
	var retired []int64
	var g grants
	l := newLeaseManager(func(n int64) { retired = append(retired, n) })
	take := func(ttl time.Duration) clientv3.LeaseID {
		t.Helper()
		lease, err := l.lease(t.Context(), &g, ttl, 0)
		if err != nil {
			t.Fatal(err)
		}
		return lease
	}
	for i := range leaseMaxObjects {
		if got := take(time.Hour); got != 1 {
			t.Fatalf("key %d got lease %d, want 1", i, got)
		}
	}
	if got := take(time.Hour); got != 2 {
		t.Errorf("key %d got lease %d, want 2", leaseMaxObjects, got)
	}
	if got := take(100 * time.Second); got != 3 {
		t.Errorf("a key with a shorter TTL got lease %d, want 3", got)
	}
	if got := take(101*time.Second + 1); got != 3 {
		t.Errorf("a key with a TTL within the window got lease %d, want 3", got)
	}
	l.discard(3)
	if got := take(99*time.Second + 1); got != 4 {
		t.Errorf("after lease 3 was discarded a key got lease %d, want 4", got)
	}
	if short, again := take(15*time.Second), take(99*time.Second+1); short != 5 || again != 4 {
		t.Errorf("a key with a TTL too short for reuse got lease %d and the next key lease %d, want 5 and 4", short, again)
	}
	g.err = errors.New("no quorum")
	if _, err := l.lease(t.Context(), &g, time.Second, 0); !errors.Is(err, g.err) {
		t.Errorf("got error %v, want %v", err, g.err)
	}
	// The TTLs are extended by 5 percent, but no more than a minute.
	if want := []int64{3660, 3660, 105, 105, 15}; !slices.Equal(g.ttls, want) {
		t.Errorf("granted %d, want %d", g.ttls, want)
	}
	if want := []int64{1000, 1, 2}; !slices.Equal(retired, want) {
		t.Errorf("retired with %d keys, want %d", retired, want)
	}
}

// stalledGrants is a clientv3.Lease whose grants wait for granted.
type stalledGrants struct {
	grants
	requested, granted chan struct{}
}

func (g *stalledGrants) Grant(ctx context.Context, ttl int64) (*clientv3.LeaseGrantResponse, error) {
	g.requested <- struct{}{}
	select {
	case <-g.granted:
		return g.grants.Grant(ctx, ttl)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// TestLeaseWhileAGrantStalls checks callers that need a lease while another is being granted. They wait no longer than
// their context allows, not at all if the last lease fits, and request one themselves if that grant fails.
func TestLeaseWhileAGrantStalls(t *testing.T) {
	g := stalledGrants{requested: make(chan struct{}, 10), granted: make(chan struct{})}
	l := newLeaseManager(nil)
	type result struct {
		lease clientv3.LeaseID
		err   error
	}
	take := func(ctx context.Context, ttl time.Duration) <-chan result {
		taken := make(chan result, 1)
		go func() {
			lease, err := l.lease(ctx, &g, ttl, 0)
			taken <- result{lease, err}
		}()
		return taken
	}
	want := func(taken <-chan result, lease clientv3.LeaseID, err error) {
		t.Helper()
		select {
		case got := <-taken:
			if got.lease != lease || !errors.Is(got.err, err) {
				t.Errorf("got lease %d and error %v, want %d and %v", got.lease, got.err, lease, err)
			}
		case <-time.After(proctest.Patience):
			t.Fatal("the caller still waits for its lease")
		}
	}
	first := take(t.Context(), time.Hour)
	g.granted <- struct{}{}
	want(first, 1, nil)
	ctx, cancel := context.WithCancel(t.Context())
	stalled := take(ctx, 100*time.Second)
	<-g.requested
	<-g.requested
	want(take(t.Context(), time.Hour), 1, nil)
	short, cancelShort := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancelShort()
	want(take(short, 100*time.Second), 0, context.DeadlineExceeded)
	next := take(t.Context(), 100*time.Second)
	cancel()
	want(stalled, 0, context.Canceled)
	g.granted <- struct{}{}
	want(next, 2, nil)
}

// TestHangingGrantsAreRetried checks that a grant that hangs is soon retried, and that a slow grant succeeds. Callers
// whose lease is not shared wait for neither.
func TestHangingGrantsAreRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := stalledGrants{requested: make(chan struct{}, 10), granted: make(chan struct{})}
		l := newLeaseManager(nil)
		var callers sync.WaitGroup
		for range 3 {
			callers.Go(func() {
				if _, err := l.lease(t.Context(), &g, time.Hour, 0); err != nil {
					t.Error(err)
				}
			})
		}
		began := time.Now()
		synctest.Wait()
		if _, err := l.lease(t.Context(), &grants{}, 15*time.Second, 0); err != nil || time.Since(began) != 0 {
			t.Errorf("a lease that is not shared: error %v after %v, want none after 0s", err, time.Since(began))
		}
		time.Sleep(2 * grantFirst) // the first attempt hangs, the second one is slow
		close(g.granted)
		callers.Wait()
		if took := time.Since(began); took != 2*grantFirst || len(g.requested) != 2 {
			t.Errorf("took %v and %d attempts, want %v and 2", took, len(g.requested), 2*grantFirst)
		}
	})
}

func TestErrorsContainEtcdsText(t *testing.T) {
	err := error(&Error{Op: "list", Key: "/registry/pods/", Err: rpctypes.ErrCompacted})
	if !errors.Is(err, ErrCompacted) || errors.Is(err, ErrFutureRevision) || !errors.Is(err, rpctypes.ErrCompacted) {
		t.Errorf("%v is not ErrCompacted alone", err)
	}
	var failed *Error
	if !errors.As(err, &failed) || failed.Err.Error() != "etcdserver: mvcc: required revision has been compacted" {
		t.Errorf("%v does not wrap etcd's error", err)
	}
	if want := "kv: list /registry/pods/: etcdserver: mvcc: required revision has been compacted"; err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
	if got := (&Error{Op: "revision", Err: context.Canceled}).Error(); got != "kv: revision: context canceled" {
		t.Errorf("got %q, want %q", got, "kv: revision: context canceled")
	}
}

func TestNewExternalRejectsInvalidConfigs(t *testing.T) {
	for name, err := range map[string]error{
		"no endpoint":             second(NewExternal(ExternalConfig{CAFile: "ca"})),
		"certificate without key": second(NewExternal(ExternalConfig{Endpoints: []string{"http://127.0.0.1:1"}, CertFile: "c"})),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func second(_ *Etcd, err error) error { return err }

// TestStoreBehindAWatchWasReplaced checks that a store with a lower revision than one that a watch delivered counts as
// replaced. Deliveries of a replaced history do not count.
func TestStoreBehindAWatchWasReplaced(t *testing.T) {
	header := func(revision int64) *etcdserverpb.ResponseHeader {
		return &etcdserverpb.ResponseHeader{ClusterId: 1, Revision: revision, RaftTerm: 2}
	}
	var h history
	h.observe(h.mark(), header(100))
	opened := h.replacements.Load()
	early := h.mark()
	h.raise(opened, 150, 0)
	if h.observe(early, header(120)) != same {
		t.Error("a response to an earlier request replaced the history")
	}
	if h.observe(h.mark(), header(120)) != replaced || h.replaced.Load() != 150 {
		t.Errorf("a store behind the progress of a watch did not replace the history; replaced at %d, want 150", h.replaced.Load())
	}
	h.raise(opened, 160, 0)
	if h.observe(h.mark(), header(121)) != same || h.revision.Load() != 121 {
		t.Error("a watch of the replaced history affected the new one")
	}
}
