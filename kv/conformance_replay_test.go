package kv_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/larder-io/larder/kv"
)

// testReplay starts Tails that replay past revisions. They must go back as far as configured, or to the oldest revision
// that the store still has, and deliver all events since.
func (s *suite) testReplay() {
	var revisions []int64
	for i := range 20 {
		revisions = append(revisions, s.put(strconv.Itoa(i%5), strconv.Itoa(i)))
		if i%4 == 0 {
			revisions = append(revisions, s.delete(strconv.Itoa(i%5)))
		}
	}
	current, compacted := revisions[len(revisions)-1], revisions[9]
	s.must(s.Compact(s.ctx, compacted))
	for _, c := range []struct{ replay, past int64 }{
		{0, 0},
		{1, current - 1},
		{3, current - 3},
		{current - compacted - 1, compacted + 1},
		{current - compacted, compacted},
		{current - compacted + 1, compacted},
		{1_000_000, compacted},
	} {
		s.replay(c.replay, c.past, current)
	}
	s.must(s.Compact(s.ctx, current))
	s.replay(1_000_000, 0, current)
}

// replay runs a Tail and compares the loaded and received items of a subscription with the store.
func (s *suite) replay(reach, wantPast, current int64) {
	s.Helper()
	tail := kv.NewTail(kv.TailConfig{Store: s.Store, Prefix: "/conformance", Replay: reach})
	sub := tail.Subscribe(s.prefix) // before the Tail runs, so that it gets all past events
	ctx, cancel := context.WithCancel(s.ctx)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return tail.Run(ctx) })
	defer func() {
		cancel()
		s.must(group.Wait())
	}()
	past, until, err := sub.Begin(s.ctx, 0)
	s.must(err)
	if past != wantPast || past > 0 && until != current {
		s.Errorf("replay of %d revisions: from %d to %d, want from %d to %d", reach, past, until, wantPast, current)
	}
	if past == 0 {
		return
	}
	state := make(map[string]string)
	_, err = kv.RangeAll(s.ctx, s.Store, kv.RangeOptions{Prefix: s.prefix, Revision: past, Limit: 2}, func(page kv.Page) error {
		for _, item := range page.Items {
			state[item.Key] = fmt.Sprintf("%d %s", item.Revision, item.Value)
		}
		return nil
	})
	s.must(err)
	sub.Loaded(past)
	var revisions []int64
	for last := past; last < current; {
		batches, err := sub.Next(s.ctx)
		s.must(err)
		for _, batch := range batches {
			revisions = append(revisions, batch.Revision)
			last = batch.Revision
			for _, event := range batch.Events {
				state[event.Key] = fmt.Sprintf("%d %s", event.Revision, event.Value)
				if event.Kind == kv.Delete {
					delete(state, event.Key)
				}
			}
		}
		sub.Applied(len(batches))
	}
	if int64(len(revisions)) != current-past || !slices.IsSorted(revisions) {
		s.Errorf("replay from %d to %d delivers revisions %v, want each once", past, current, revisions)
	}
	s.must(sub.Wait(s.ctx, current))
	page, err := s.Subject.Range(s.ctx, kv.RangeOptions{Prefix: s.prefix})
	s.must(err)
	for _, item := range page.Items {
		if want := fmt.Sprintf("%d %s", item.Revision, item.Value); state[item.Key] != want {
			s.Errorf("replay from %d: %s is %q, want %q", past, strings.TrimPrefix(item.Key, s.prefix), state[item.Key], want)
		}
	}
	if len(state) != len(page.Items) {
		s.Errorf("replay from %d: %d keys, want %d", past, len(state), len(page.Items))
	}
}
