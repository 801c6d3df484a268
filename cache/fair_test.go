package cache

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// pacedLog is a cache with its own rate of writes.
type pacedLog struct {
	*Cache
	every time.Duration
	size  int
	due   time.Time

	times map[int64]time.Time // by revision
	most  int64               // the largest size of the log so far, in bytes
}

func newPacedLog(t *testing.T, budget *Budget, name string, every time.Duration, size int) *pacedLog {
	t.Helper()
	c, err := New(Config{Schema: NewResourceSchema(name, budget), Log: LogConfig{MinEvents: 4}})
	if err != nil {
		t.Fatal(err)
	}
	c.Reset(nil, 1)
	return &pacedLog{Cache: c, every: every, size: size, times: map[int64]time.Time{1: {}}}
}

func (p *pacedLog) write(revision int64, now time.Time) {
	o := NewObject(ObjectConfig{Key: "a", Revision: revision, Body: make([]byte, p.size)}, p.schema)
	p.Apply(Batch{Revision: revision, Time: now, Changes: []Change{{"a", o}}})
	p.times[revision] = now
	p.most = max(p.most, p.Log().Bytes())
}

// runPaced writes to all caches at their rates for a time, and calls check after each write.
func runPaced(all []*pacedLog, revision *int64, from time.Time, lasts time.Duration, check func(*pacedLog, time.Time)) time.Time {
	for _, p := range all {
		p.due = from.Add(p.every)
	}
	for {
		next := all[0]
		for _, p := range all {
			if p.due.Before(next.due) {
				next = p
			}
		}
		now := next.due
		if now.Sub(from) > lasts {
			return now
		}
		*revision++
		next.write(*revision, now)
		next.due = now.Add(next.every)
		check(next, now)
	}
}

// TestLargestLogsAreCutFirst checks that the largest logs drop events first. A log with at most an equal part of the
// memory drops none. A resource without further writes gives its memory to one with writes.
func TestLargestLogsAreCutFirst(t *testing.T) {
	const limit = 1 << 20
	budget := NewBudget(limit)
	hot := newPacedLog(t, budget, "hot", 10*time.Millisecond, 10_000)
	cold := newPacedLog(t, budget, "cold", time.Second, 1000)
	rare := newPacedLog(t, budget, "rare", 20*time.Second, 100)
	next := newPacedLog(t, budget, "next", 2*time.Second, 3000)
	all := []*pacedLog{hot, cold, rare, next}
	check := func(_ *pacedLog, now time.Time) {
		if budget.LogBytes() > limit {
			t.Fatalf("the logs have %d bytes, the limit is %d", budget.LogBytes(), limit)
		}
		for _, p := range []*pacedLog{cold, rare} {
			if lost := p.times[p.Log().Oldest()]; !lost.IsZero() && now.Sub(lost) < 75*time.Second {
				t.Fatalf("the log of %s reaches back %v, want at least 75s", p.schema.name, now.Sub(lost))
			}
		}
	}
	revision := int64(1)
	now := runPaced(all, &revision, time.Unix(0, 0), 200*time.Second, check)
	if hot.Log().Bytes() < limit/2 || cold.Pressure()+rare.Pressure()+next.Pressure() != 0 {
		t.Errorf("the busiest log has %d bytes, want at least %d; others dropped %d, %d, %d events, want none",
			hot.Log().Bytes(), limit/2, cold.Pressure(), rare.Pressure(), next.Pressure())
	}
	next.every, next.size = 10*time.Millisecond, 20_000
	runPaced(all[1:], &revision, now, 20*time.Second, check)
	if next.Log().Bytes() < limit/3 {
		t.Errorf("the log that is now the busiest has %d bytes, want at least %d", next.Log().Bytes(), limit/3)
	}
}

// Pressure returns the number of events that were discarded for lack of memory.
func (p *pacedLog) Pressure() int64 { return p.schema.Pressure().Events }

// TestLogsAreCutToEqualParts runs logs with random rates and sizes. A log that never exceeded an equal part must not
// be cut, and the total must not exceed the limit.
func TestLogsAreCutToEqualParts(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		limit := int64(100_000 + random.IntN(400_000))
		budget := NewBudget(limit)
		all := make([]*pacedLog, 2+random.IntN(6))
		for i := range all {
			every := time.Duration(1+random.IntN(1<<random.IntN(12))) * time.Millisecond
			all[i] = newPacedLog(t, budget, fmt.Sprint(i), every, random.IntN(1<<random.IntN(14)))
		}
		revision := int64(1)
		runPaced(all, &revision, time.Unix(0, 0), 5*time.Second, func(_ *pacedLog, now time.Time) {
			if budget.LogBytes() > limit {
				t.Fatalf("seed %d: the logs have %d bytes, the limit is %d", seed, budget.LogBytes(), limit)
			}
		})
		var sum int64
		for i, p := range all {
			part := limit/int64(len(all)) - int64(p.size) - eventOverhead // minus room for another event
			if p.Pressure() > 0 && p.most < part {
				t.Errorf("seed %d: log %d was cut although it never had more than %d bytes; its part is %d", seed, i, p.most, part)
			}
			sum += p.Log().Bytes()
		}
		if sum != budget.LogBytes() {
			t.Errorf("seed %d: the budget counts %d bytes, the logs have %d", seed, budget.LogBytes(), sum)
		}
		for _, p := range all {
			p.Reset(nil, revision)
		}
		if logs := budget.LogBytes(); logs != 0 {
			t.Errorf("seed %d: the budget counts %d bytes after all logs are reset, want 0", seed, logs)
		}
	}
}

// TestReadersSeeNoGapWhileLogsAreCut has writers of several caches shorten each other's logs while readers follow them.
func TestReadersSeeNoGapWhileLogsAreCut(t *testing.T) {
	const limit = 100_000
	budget := NewBudget(limit)
	var over atomic.Bool
	var writers, readers sync.WaitGroup
	var all []*pacedLog
	for i := range 3 {
		p := newPacedLog(t, budget, fmt.Sprint(i), 0, 300<<i)
		all = append(all, p)
		writers.Go(func() {
			for revision := int64(2); revision < 4000; revision++ {
				p.write(revision, time.Unix(0, 0))
			}
		})
		readers.Go(func() {
			for !over.Load() {
				revision := p.Log().Oldest()
				at, err := p.Log().After(revision)
				if err != nil {
					continue
				}
				events, _, _ := p.Log().Read(at, nil)
				for _, e := range events {
					if revision++; e.Revision != revision {
						t.Errorf("read revision %d, want %d", e.Revision, revision)
						return
					}
				}
				if s, err := p.At(p.Log().Oldest()); err == nil && s.Len() > 1 {
					t.Errorf("a past state has %d objects, want at most 1", s.Len())
				}
			}
		})
	}
	writers.Wait()
	over.Store(true)
	readers.Wait()
	for _, p := range all {
		p.write(4000, time.Unix(0, 0)) // no other cache is written meanwhile
	}
	var sum int64
	for _, p := range all {
		sum += p.Log().Bytes()
	}
	if sum != budget.LogBytes() || sum > limit {
		t.Errorf("the budget counts %d bytes, the logs have %d, the limit is %d", budget.LogBytes(), sum, limit)
	}
}
