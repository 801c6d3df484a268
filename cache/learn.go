package cache

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/google/btree"
	"k8s.io/apimachinery/pkg/labels"
)

const (
	// An index is made when worthwhile times as many objects as the resource has were scanned in
	// vain, which costs about as much as making the index.
	worthwhile = 4
	// An index helps if a query finds at most one in selective of the objects that it scans, and if
	// a value of the label leads to at most one in selective of all objects on average.
	selective = 8
	// maxIdle is how many reviews an index may remain unused.
	maxIdle = 20
	// maxCandidates bounds the label keys that are observed at once.
	maxCandidates = 64
)

// learnConfig bounds the indexes that a Cache makes by itself. Only tests change it.
type learnConfig struct {
	maxIndexes int // a negative number forbids them
	maxEntries int // the objects in all of them together, each about 40 bytes
	minScan    int // how many objects a query must have scanned to count
}

// learner counts the objects that queries scan in vain, and finds labels that are worth an
// index (E2). Scores are halved periodically, so that a rare query does not count.
type learner struct {
	config learnConfig
	wanted chan struct{} // has an element when a candidate is worth an index

	mu sync.Mutex // a leaf; readers use TryLock
	// candidates are the scores: objects scanned in vain, by the label key whose index would
	// have avoided the scan. A negative score says that no index is made of the key for now.
	candidates map[string]int64
}

// learnt is the use of an index that was not declared.
type learnt struct {
	uses atomic.Int64 // halved at each review
	idle int          // reviews without a use; guarded by Cache.mu
}

func newLearner() *learner {
	return &learner{
		config:     learnConfig{maxIndexes: 4, maxEntries: 500_000, minScan: 500},
		wanted:     make(chan struct{}, 1),
		candidates: make(map[string]int64),
	}
}

// observe counts the cost of a query. It never waits: if another query is observed at the same time, this
// one is not counted.
func (l *learner) observe(s *state, label labels.Selector, scanned, found int) {
	if l.config.maxIndexes < 0 || scanned < l.config.minScan || found*selective > scanned || !l.mu.TryLock() {
		return
	}
	defer l.mu.Unlock()
	requirements, _ := label.Requirements()
	for i := range requirements {
		key := requirements[i].Key()
		if _, exact := label.RequiresExactMatch(key); !exact || s.labelIndex(key) >= 0 {
			continue
		}
		score, known := l.candidates[key]
		if score < 0 || !known && len(l.candidates) >= maxCandidates {
			continue
		}
		score += int64(scanned - found)
		l.candidates[key] = score
		if score >= l.threshold(s) {
			select {
			case l.wanted <- struct{}{}:
			default:
			}
		}
	}
}

func (l *learner) threshold(s *state) int64 { return worthwhile * int64(s.objects.Len()) }

// take returns the keys that are worth an index, the one with the highest score first, and
// deletes their scores.
func (l *learner) take(s *state) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var keys []string
	for key, score := range l.candidates {
		if score >= l.threshold(s) {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(a, b string) int { return cmp.Compare(l.candidates[b], l.candidates[a]) })
	for _, key := range keys {
		delete(l.candidates, key)
	}
	return keys
}

// refuse keeps a key from being tried again for a while.
func (l *learner) refuse(key string, s *state) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.candidates[key] = -worthwhile * l.threshold(s)
}

// fade halves all scores.
func (l *learner) fade() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, score := range l.candidates {
		if score /= 2; score == 0 {
			delete(l.candidates, key)
		} else {
			l.candidates[key] = score
		}
	}
}

// learn makes the indexes that are worth it. It builds the trees from a published state while the writer continues,
// and then brings them up to date under the writer's lock. One goroutine at a time calls it.
func (c *Cache) learn() {
	for _, key := range c.learner.take(c.current.Load()) {
		base := c.current.Load()
		if base.epoch == 0 || base.labelIndex(key) >= 0 {
			continue
		}
		ix, ok := base.buildIndex(key)
		if !ok || !c.adopt(base, ix) {
			c.learner.refuse(key, base)
		}
	}
}

// buildIndex makes an index of a label over the state's objects; ok is false when too many
// objects have the same value.
func (s *state) buildIndex(key string) (ix index, ok bool) {
	ix = index{Index: Index{Label: key}, tree: btree.NewG(degree, lessEntry), learnt: new(learnt)}
	s.objects.Ascend(func(o *Object) bool {
		ix.move(nil, o)
		return true
	})
	values, last := 0, ""
	ix.tree.Ascend(func(e entry) bool {
		if values == 0 || e.value != last {
			values, last = values+1, e.value
		}
		return true
	})
	perValue := ix.tree.Len() / max(values, 1)
	return ix, perValue*selective <= s.objects.Len()
}

// adopt brings an index of base up to date and publishes it. It returns false if
// that is not possible or there is no room for the index.
func (c *Cache) adopt(base *state, ix index) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.current.Load()
	if now.epoch != base.epoch {
		return false
	}
	corrupt := base.corruptFrom("", base.corruptCount())
	if missed := int(now.position - base.position); missed > 0 {
		events, next, err := c.log.Read(base.position, make([]*Event, 0, missed))
		if err != nil || next != now.position {
			return false
		}
		for _, e := range events {
			ix.move(e.Prev, e.Object)
			if e.Object != nil && e.Object.Err() != nil {
				corrupt = append(corrupt, e.Object)
			}
		}
	}
	// showRepaired replaces a corrupt object without an event.
	for _, o := range corrupt {
		if present := now.get(o.Key()); present != nil {
			ix.move(nil, present)
		}
	}
	indexes, ok := c.makeRoom(now.indexes, ix)
	if !ok {
		return false
	}
	c.publishIndexes(now, indexes)
	return true
}

// makeRoom returns the indexes with one more. If that exceeds the bounds, the least used of
// the learnt ones are dropped; it returns false if all of them are in use.
func (c *Cache) makeRoom(indexes []index, more index) ([]index, bool) {
	indexes = append(slices.Clone(indexes), more)
	for {
		count, entries, least := 0, 0, -1
		for i, ix := range indexes {
			if ix.learnt == nil {
				continue
			}
			count, entries = count+1, entries+ix.tree.Len()
			if ix.learnt != more.learnt && (least < 0 || ix.learnt.uses.Load() < indexes[least].learnt.uses.Load()) {
				least = i
			}
		}
		if count <= c.learner.config.maxIndexes && entries <= c.learner.config.maxEntries {
			return indexes, true
		}
		if least < 0 || indexes[least].learnt.uses.Load() > worthwhile {
			return nil, false
		}
		indexes = slices.Delete(indexes, least, least+1)
	}
}

// publishIndexes shows the same state with other indexes.
func (c *Cache) publishIndexes(now *state, indexes []index) {
	next := *now
	next.indexes, next.events = indexes, nil // the log has the events
	c.publish(&next)
}

// review halves the scores, and drops the learnt indexes that were not used for maxIdle
// reviews.
func (c *Cache) review() {
	c.learner.fade()
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.current.Load()
	kept := slices.DeleteFunc(slices.Clone(now.indexes), func(ix index) bool {
		if ix.learnt == nil {
			return false
		}
		uses := ix.learnt.uses.Load()
		ix.learnt.uses.Add(-(uses + 1) / 2)
		if ix.learnt.idle++; uses > 0 {
			ix.learnt.idle = 0
		}
		return ix.learnt.idle >= maxIdle
	})
	if len(kept) < len(now.indexes) {
		c.publishIndexes(now, kept)
	}
}
