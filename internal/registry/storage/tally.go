package storage

import (
	"maps"
	"sync/atomic"
	"time"
)

// ReadStats says what reads of a resource have cost since it was made.
type ReadStats struct {
	// Indexes has, by the index that narrowed the search, "" for none, the lists that were
	// answered from the cache. Returned are the objects in their answers.
	Indexes  map[string]IndexStats
	Returned int64
	// Stored counts lists that were answered from the store, and Fetched, Evaluated and Found
	// the objects that were read, looked at and returned for them.
	Stored, Fetched, Evaluated, Found int64
	// Consistent and Failed count lists of the newest state.
	Consistent, Failed int64
	// Waits counts, by WaitBounds and not cumulative, reads that needed the cache to have come
	// to a revision, and Waited is how long they waited in all.
	Waits  []int64
	Waited time.Duration
}

// IndexStats counts lists that one index narrowed, and the objects that they looked at.
type IndexStats struct{ Lists, Fetched int64 }

// WaitBounds are the bounds of upstream's buckets, in seconds (apiserver
// pkg/storage/cacher/metrics/metrics.go).
var WaitBounds = [...]float64{0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3}

// readTally counts reads. Counting takes no lock.
type readTally struct {
	plain    indexTally // lists that no index narrowed
	indexed  atomic.Pointer[map[string]*indexTally]
	returned atomic.Int64

	stored, fetched, evaluated, found atomic.Int64
	consistent, failed                atomic.Int64
	waits                             waitTally
}

type indexTally struct{ lists, fetched atomic.Int64 }

// waitTally counts reads that needed the cache to have come to a revision.
type waitTally struct {
	nanos  atomic.Int64
	counts [len(WaitBounds) + 1]atomic.Int64
}

func (t *waitTally) add(took time.Duration) {
	at := 0
	for at < len(WaitBounds) && took.Seconds() > WaitBounds[at] {
		at++
	}
	t.nanos.Add(int64(took))
	t.counts[at].Add(1)
}

// none counts a read that need not wait.
func (t *waitTally) none() { t.counts[0].Add(1) }

// list counts a list that was answered from the cache.
func (t *readTally) list(index string, fetched, returned int) {
	i := &t.plain
	if index != "" {
		i = t.index(index)
	}
	i.lists.Add(1)
	i.fetched.Add(int64(fetched))
	t.returned.Add(int64(returned))
}

// index returns the tally of an index. There are few indexes.
func (t *readTally) index(name string) *indexTally {
	for {
		known := t.indexed.Load()
		if known != nil && (*known)[name] != nil {
			return (*known)[name]
		}
		next := make(map[string]*indexTally)
		if known != nil {
			maps.Copy(next, *known)
		}
		next[name] = new(indexTally)
		if t.indexed.CompareAndSwap(known, &next) {
			return next[name]
		}
	}
}

// store counts a list that was answered from the store.
func (t *readTally) store(fetched, evaluated, found int) {
	t.stored.Add(1)
	t.fetched.Add(int64(fetched))
	t.evaluated.Add(int64(evaluated))
	t.found.Add(int64(found))
}

// ReadStats returns the counters.
func (r *Resource) ReadStats() ReadStats {
	t := &r.reads
	s := ReadStats{
		Indexes: make(map[string]IndexStats), Returned: t.returned.Load(),
		Stored: t.stored.Load(), Fetched: t.fetched.Load(), Evaluated: t.evaluated.Load(), Found: t.found.Load(),
		Consistent: t.consistent.Load(), Failed: t.failed.Load(),
		Waited: time.Duration(t.waits.nanos.Load()),
	}
	if n := t.plain.lists.Load(); n > 0 {
		s.Indexes[""] = IndexStats{n, t.plain.fetched.Load()}
	}
	if known := t.indexed.Load(); known != nil {
		for name, i := range *known {
			s.Indexes[name] = IndexStats{i.lists.Load(), i.fetched.Load()}
		}
	}
	for i := range t.waits.counts {
		s.Waits = append(s.Waits, t.waits.counts[i].Load())
	}
	return s
}
