package kv_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/larder-io/larder/kv"
)

// follow returns batches of the watch with at least the given number of events. It checks order, prefix and progress.
func (s *suite) follow(watch <-chan kv.WatchResponse, events int) []kv.Batch {
	s.Helper()
	var batches []kv.Batch
	var last int64
	for n := 0; n < events; {
		response, ok := s.receive(watch)
		if !ok || response.Err != nil {
			s.Fatalf("watch ended after %d of %d events: %v", n, events, response.Err)
		}
		for _, batch := range response.Batches {
			if batch.Revision <= last || len(batch.Events) == 0 {
				s.Fatalf("batch %+v after revision %d", batch, last)
			}
			last = batch.Revision
			for _, event := range batch.Events {
				if event.Revision != batch.Revision || !strings.HasPrefix(event.Key, s.prefix) {
					s.Fatalf("event %+v in batch of revision %d", event, batch.Revision)
				}
				n++
			}
		}
		if response.Progress < last {
			s.Fatalf("progress %d after revision %d", response.Progress, last)
		}
		batches = append(batches, response.Batches...)
	}
	return batches
}

func (s *suite) receive(watch <-chan kv.WatchResponse) (kv.WatchResponse, bool) {
	s.Helper()
	select {
	case response, ok := <-watch:
		return response, ok
	case <-s.ctx.Done():
		s.Fatal("watch delivered nothing")
		return kv.WatchResponse{}, false
	}
}

func (s *suite) testWatch() {
	before := s.put("a", "0")
	var want []string
	change := func(revision int64, format string, args ...any) {
		want = append(want, fmt.Sprintf("%d ", revision)+fmt.Sprintf(format, args...))
	}
	change(s.put("a", "1"), "update a=1")
	change(s.put("b", "1"), "create b=1")
	watch := s.Watch(s.ctx, s.prefix, before)
	change(s.put("b", "2"), "update b=2")
	change(s.delete("b"), "delete b=")
	change(s.put("b", "3"), "create b=3")
	var got []string
	for _, batch := range s.follow(watch, len(want)) {
		for _, event := range batch.Events {
			got = append(got, fmt.Sprintf("%d %v %s=%s", event.Revision, event.Kind, strings.TrimPrefix(event.Key, s.prefix), event.Value))
		}
	}
	if !slices.Equal(got, want) {
		s.Errorf("got %q, want %q", got, want)
	}
}

func (s *suite) testWatchWholeRevisions() {
	if s.Imitation {
		s.Skip("each revision changes only one key")
	}
	start, err := s.Revision(s.ctx)
	s.must(err)
	early := s.Watch(s.ctx, s.prefix, start)
	sizes := make(map[int64]int)
	total := 0
	for i := range 20 {
		values := make(map[string][]byte)
		for j := range 1 + i%7 {
			values[fmt.Sprintf("%s%d", s.prefix, j)] = []byte(strconv.Itoa(i))
		}
		values["/conformance/elsewhere"] = []byte(strconv.Itoa(i))
		revision, err := s.PutAll(s.ctx, values)
		s.must(err)
		sizes[revision] = len(values) - 1
		total += len(values) - 1
	}
	for name, watch := range map[string]<-chan kv.WatchResponse{"live": early, "late": s.Watch(s.ctx, s.prefix, start)} {
		got := make(map[int64]int)
		for _, batch := range s.follow(watch, total) {
			got[batch.Revision] = len(batch.Events)
		}
		for revision, size := range sizes {
			if got[revision] != size {
				s.Errorf("%s: batch of revision %d has %d events, want %d", name, revision, got[revision], size)
			}
		}
	}
}

func (s *suite) testWatchFuture() {
	revision := s.put("a", "1")
	watch := s.Watch(s.ctx, s.prefix, revision+3)
	if s.Imitation {
		if response, _ := s.receive(watch); !errors.Is(response.Err, kv.ErrFutureRevision) {
			s.Errorf("watch after a future revision: got %+v, want ErrFutureRevision", response)
		}
		return
	}
	for i := 2; ; i++ {
		if got := s.put("a", strconv.Itoa(i)); got > revision+3 {
			if batches := s.follow(watch, 1); batches[0].Revision != got {
				s.Errorf("first batch %+v, want revision %d", batches[0], got)
			}
			return
		}
	}
}

func (s *suite) testWatchCancel() {
	ctx, cancel := context.WithCancel(s.ctx)
	revision := s.put("a", "1")
	other, watch := s.Watch(s.ctx, s.prefix, revision), s.Watch(ctx, s.prefix, revision)
	s.put("a", "2")
	s.follow(watch, 1)
	cancel()
	for response := range watch {
		if response.Err != nil {
			s.Errorf("cancelled watch ended with %v", response.Err)
		}
	}
	s.put("a", "3")
	s.follow(other, 2)
}

func (s *suite) testProgress() {
	revision := s.put("a", "1")
	watch := s.Watch(s.ctx, s.prefix, revision)
	latest, err := s.PutAll(s.ctx, map[string][]byte{"/conformance/elsewhere": []byte("progress")})
	s.must(err)
	for delay := time.Millisecond; ; delay *= 2 { // requests may be lost
		s.must(s.RequestProgress(s.ctx))
		select {
		case response := <-watch:
			if response.Err != nil || len(response.Batches) > 0 {
				s.Fatalf("got %+v, want only progress", response)
			}
			if response.Progress >= latest {
				return
			}
		case <-time.After(delay):
		case <-s.ctx.Done():
			s.Fatal("no progress")
		}
	}
}

// testTail follows the store with a Tail. After Wait the owner of a subscription must have all writes.
func (s *suite) testTail() {
	tail := kv.NewTail(kv.TailConfig{Store: s.Store, Prefix: "/conformance"})
	ctx, cancel := context.WithCancel(s.ctx)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return tail.Run(ctx) })
	s.must(tail.Wait(s.ctx, 1))
	sub := tail.Subscribe(s.prefix)
	first, err := s.Subject.Range(s.ctx, kv.RangeOptions{Prefix: s.prefix})
	s.must(err)
	sub.Loaded(first.Revision)
	applied := make(map[string]string)
	group.Go(func() error {
		for {
			batches, err := sub.Next(ctx)
			if err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return err
			}
			for _, batch := range batches {
				for _, event := range batch.Events {
					applied[event.Key] = string(event.Value)
				}
			}
			sub.Applied(len(batches))
		}
	})
	for i := range 50 {
		s.put(fmt.Sprintf("%d", i%5), strconv.Itoa(i))
		if i%10 == 0 {
			_, err := s.PutAll(s.ctx, map[string][]byte{"/conformance-elsewhere": []byte(strconv.Itoa(i))})
			s.must(err)
		}
		revision, err := s.Revision(s.ctx)
		s.must(err)
		s.must(sub.Wait(s.ctx, revision))
		if fresh := sub.Fresh(); fresh < revision {
			s.Fatalf("Fresh = %d after Wait for %d", fresh, revision)
		}
	}
	cancel()
	if err := group.Wait(); err != nil {
		s.Error(err)
	}
	for i := range 5 {
		if got, want := applied[fmt.Sprintf("%s%d", s.prefix, i)], strconv.Itoa(45+i); got != want {
			s.Errorf("the owner has %d=%q, want %q", i, got, want)
		}
	}
}

func (s *suite) testCompacted() {
	old := s.put("a", "1")
	for i := range 5 {
		s.put("a", strconv.Itoa(i))
	}
	gone := s.put("b", "1")
	compacted := s.delete("b")
	s.put("a", "last")
	s.must(s.Compact(s.ctx, compacted))
	for _, revision := range []int64{old, gone} {
		if _, err := s.Subject.Range(s.ctx, kv.RangeOptions{Prefix: s.prefix, Revision: revision}); !errors.Is(err, kv.ErrCompacted) {
			s.Errorf("range at %d, compacted at %d: got error %v, want ErrCompacted", revision, compacted, err)
		}
	}
	if _, err := s.Subject.Range(s.ctx, kv.RangeOptions{Prefix: s.prefix, Revision: compacted}); err != nil {
		s.Errorf("range at the compacted revision: %v", err)
	}
	watch := s.Watch(s.ctx, s.prefix, old)
	response, _ := s.receive(watch)
	if !errors.Is(response.Err, kv.ErrCompacted) {
		s.Errorf("watch after %d, compacted at %d: got %+v, want ErrCompacted", old, compacted, response)
	}
	if response, ok := s.receive(watch); ok {
		s.Errorf("after its error the watch delivered %+v", response)
	}
	// The deletion at the compacted revision itself must not be lost.
	watch = s.Watch(s.ctx, s.prefix, compacted-1)
	if s.Imitation {
		if response, _ := s.receive(watch); !errors.Is(response.Err, kv.ErrCompacted) {
			s.Errorf("watch after %d, compacted at %d: got %+v, want ErrCompacted", compacted-1, compacted, response)
		}
	} else if batches := s.follow(watch, 2); batches[0].Events[0].Kind != kv.Delete {
		s.Errorf("first event after %d: got %+v, want the deletion", compacted-1, batches[0])
	}
	if got := s.Compaction(); got < compacted {
		s.Errorf("Compaction = %d, want at least %d", got, compacted)
	}
}
