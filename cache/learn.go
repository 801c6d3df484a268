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
	// scansPerIndex is the number of avoidable full scans after which an index is built. Building it costs about as
	// much.
	scansPerIndex = 4
	// minSelectivity is how selective queries and labels must be for an index. A query may return at most one in
	// minSelectivity of the objects that it scans. A value of the label may select, on average, at most one in
	// minSelectivity of all objects.
	minSelectivity = 8
	// maxIdle is the number of reviews after which an unused index is dropped.
	maxIdle = 20
	// maxCandidates limits the label keys that are observed at once.
	maxCandidates = 64
)

// learnConfig limits the indexes that a Cache learns. Only tests change it.
type learnConfig struct {
	maxIndexes int // a negative number disables learning
	maxEntries int // objects in all learnt indexes together; each takes about 40 bytes
	minScan    int // queries that scan fewer objects do not count
}

// learner counts the objects that queries scan but do not return, and finds labels that are worth an index (E2). Scores
// are halved periodically, so that a rare query does not count.
type learner struct {
	config learnConfig
	wanted chan struct{} // signals that a candidate is worth an index

	mu sync.Mutex // a leaf; readers use TryLock
	// candidates has, by label key, how many objects were scanned that an index of the key would have skipped. While
	// this score is negative, no index of the key is built.
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
	if l.config.maxIndexes < 0 || scanned < l.config.minScan || found*minSelectivity > scanned || !l.mu.TryLock() {
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

func (l *learner) threshold(s *state) int64 { return scansPerIndex * int64(s.objects.Len()) }

// take returns the keys that are worth an index, by descending score, and deletes their scores.
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

// refuse gives a key a negative score, so that it is not tried again soon.
func (l *learner) refuse(key string, s *state) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.candidates[key] = -scansPerIndex * l.threshold(s)
}

func (l *learner) halveScores() {
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

// learn builds the indexes whose scores have reached the threshold. It builds the trees from a published state while
// the writer continues, and then updates them under the writer's lock. One goroutine at a time calls it.
func (c *Cache) learn() {
	for _, key := range c.learner.take(c.current.Load()) {
		base := c.current.Load()
		if base.labelIndex(key) >= 0 {
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
		ix.replace(nil, o)
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
	return ix, perValue*minSelectivity <= s.objects.Len()
}

// adopt updates an index of base to the present state and publishes it. It returns false if
// that is not possible or there is no room for the index.
func (c *Cache) adopt(base *state, ix index) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.current.Load()
	if now.epoch != base.epoch {
		return false
	}
	corrupt := base.corruptFrom("", base.corruptCount())
	missed, _, err := c.log.Read(base.position, make([]*Event, 0, now.position-base.position))
	if err != nil {
		return false
	}
	for _, e := range missed {
		ix.replace(e.Prev, e.Object)
		if e.Object != nil && e.Object.Err() != nil {
			corrupt = append(corrupt, e.Object)
		}
	}
	// publishRepaired replaces a corrupt object without an event.
	for _, o := range corrupt {
		ix.replace(nil, now.get(o.Key()))
	}
	indexes, ok := c.makeRoom(now.indexes, ix)
	if !ok {
		return false
	}
	c.publishIndexes(now, indexes)
	return true
}

// makeRoom returns the indexes with one more. If that exceeds the limits, it drops the least used
// learnt indexes. It returns false if all of them are in use.
func (c *Cache) makeRoom(indexes []index, added index) ([]index, bool) {
	indexes = append(slices.Clone(indexes), added)
	for {
		count, entries, least := 0, 0, -1
		for i, ix := range indexes {
			if ix.learnt == nil {
				continue
			}
			count, entries = count+1, entries+ix.tree.Len()
			if ix.learnt != added.learnt && (least < 0 || ix.learnt.uses.Load() < indexes[least].learnt.uses.Load()) {
				least = i
			}
		}
		if count <= c.learner.config.maxIndexes && entries <= c.learner.config.maxEntries {
			return indexes, true
		}
		if least < 0 || indexes[least].learnt.uses.Load() > scansPerIndex {
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
	c.learner.halveScores()
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
