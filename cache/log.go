package cache

import (
	"cmp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/larder-io/larder/internal/invariants"
)

// FrameKey numbers the frames of an event. The code that builds frames defines the numbers.
type FrameKey uint32

// Event is one change of one object. It is immutable and shared.
type Event struct {
	// Pos is the event's position in the Log.
	Pos Position
	// Revision is the store's revision of the change. Events of one revision are
	// adjacent.
	Revision int64
	// Object is the new state, nil if the object was deleted. Prev is the previous
	// state, nil if the object was created.
	// Invariant: Object != nil || Prev != nil
	Object, Prev *Object

	time   int64 // of the batch, as Log.clock gives it
	frames cells
	// Last says that the event is the last one of its revision.
	Last bool
}

// Frame returns an encoding of the event, made by build unless it is kept. The rules of [Object.Encoding] apply. A
// frame must not depend on its reader.
func (e *Event) Frame(key FrameKey, build func() ([]byte, error)) ([]byte, error) {
	s := e.schema()
	if b, ok := e.frames.find(uint32(key), s.budget); ok {
		return b, nil
	}
	return e.frames.fill(uint32(key), account{schema: s, frame: true, urgent: true}, build)
}

// Key returns the key of the object that changed.
func (e *Event) Key() string { return e.Subject().Key() }

// Subject returns the new state, or the previous one if there is none.
func (e *Event) Subject() *Object {
	if e.Object != nil {
		return e.Object
	}
	return e.Prev
}

func (e *Event) schema() *ResourceSchema { return e.Subject().schema }

// eventOverhead is the memory of an event besides the bytes of the object it replaced: the event itself, that
// object's struct, and its share of kept snapshots.
const eventOverhead = 192

// cost returns the memory that dropping the event frees. Only the previous state counts, because
// the tree also holds the present one.
func (e *Event) cost() int64 {
	if e.Prev == nil {
		return eventOverhead
	}
	return eventOverhead + int64(len(e.Prev.body)+len(e.Prev.meta))
}

// LogConfig limits how far back a Log reaches. Zero values give the defaults.
type LogConfig struct {
	// KeepFor is the age up to which events are kept regardless of their number
	// (default 90 s; clients rely on 75 s), unless MaxEvents, MaxBytes or the Budget forbid it.
	KeepFor time.Duration
	// MinEvents are kept regardless of their age (default 128). If they take at most minBytes, they are also kept
	// regardless of the Budget.
	MinEvents int
	// MaxEvents and MaxBytes limit the log regardless of the age of its events
	// (defaults 102400 and 256 MiB, scaled up if KeepFor exceeds its default).
	MaxEvents int
	MaxBytes  int64
	// CheckpointEvery is the number of events between kept snapshots, from which
	// Cache.At reconstructs past states (default 256). Older snapshots are sparser.
	CheckpointEvery int
}

const (
	// keepFor is the default of LogConfig.KeepFor.
	keepFor = 90 * time.Second
	// minBytes is the cost of events that a Log keeps although the Budget is exhausted. MinEvents of usual objects cost
	// less, but MinEvents of objects of 1 MB would exceed a small Budget.
	minBytes = 8 << 20
)

func (c LogConfig) withDefaults() LogConfig {
	c.KeepFor = cmp.Or(c.KeepFor, keepFor)
	longer := max(1, int((c.KeepFor+keepFor-1)/keepFor))
	c.MinEvents = cmp.Or(c.MinEvents, 128)
	c.MaxEvents = cmp.Or(c.MaxEvents, longer*102400)
	c.MaxBytes = cmp.Or(c.MaxBytes, int64(longer)*256<<20)
	c.CheckpointEvery = cmp.Or(c.CheckpointEvery, 256)
	return c
}

// Log is the recent past: every change after Oldest, in revision order. Reading
// takes no lock. Only its Cache writes it.
type Log struct {
	config LogConfig
	start  time.Time   // zero of clock
	writer *sync.Mutex // the Cache's mu; held while the log is changed
	ring   *ring[Event]
	oldest atomic.Int64
	bytes  atomic.Int64
	epoch  atomic.Uint64 // first position of the present epoch
}

func newLog(config LogConfig, writer *sync.Mutex) *Log {
	config = config.withDefaults()
	return &Log{config: config, start: time.Now(), writer: writer, ring: newRing[Event](min(config.MinEvents, 64))}
}

// clock returns the nanoseconds from start to t. Steps of the wall clock do not change it if t is from time.Now.
func (l *Log) clock(t time.Time) int64 { return int64(t.Sub(l.start)) }

// Oldest returns the smallest revision from which the log can be followed: every
// later change is still there.
func (l *Log) Oldest() int64 { return l.oldest.Load() }

// Next returns the position after the newest event.
func (l *Log) Next() Position { return l.ring.Next() }

// Len returns the number of events kept.
func (l *Log) Len() int {
	first := l.ring.First()
	return int(max(l.ring.Next(), first) - first)
}

// Since returns the Time of the oldest event's Batch, or false if no event is kept.
func (l *Log) Since() (time.Time, bool) {
	for {
		var room [1]*Event
		events, _, lapped := l.ring.Read(l.ring.First(), room[:0], 1)
		switch {
		case lapped: // the event was dropped at this moment
		case len(events) == 0:
			return time.Time{}, false
		default:
			return l.start.Add(time.Duration(events[0].time)), true
		}
	}
}

// Config returns the limits of the log, with defaults filled in.
func (l *Log) Config() LogConfig { return l.config }

// Capacity returns the size of the ring in events, and how often the ring has grown and shrunk.
func (l *Log) Capacity() (events int, grown, shrunk int64) {
	return len(*l.ring.slots.Load()), l.ring.grown.Load(), l.ring.shrunk.Load()
}

// Bytes returns the memory that the kept events hold.
func (l *Log) Bytes() int64 { return l.bytes.Load() }

// Read appends the events from a position on to dst and returns the position after the last. It fills
// the spare capacity of dst (256 events if there is none), and exceeds it only to finish a revision. It
// may append nothing. The error is ErrTooOld if events at the position were dropped, and ErrReset
// if the position is from an earlier epoch.
func (l *Log) Read(from Position, dst []*Event) ([]*Event, Position, error) {
	limit := cap(dst) - len(dst)
	if limit == 0 {
		limit = 256
	}
	length := len(dst)
	events, next, lapped := l.ring.Read(from, dst, limit)
	for !lapped && len(events) > length && !events[len(events)-1].Last {
		events, next, lapped = l.ring.Read(next, events, 1)
	}
	if lapped || uint64(from) < l.epoch.Load() {
		clear(events[length:])
		return events[:length], from, l.droppedError(from)
	}
	if invariants.Enabled {
		for i, e := range events[length:] {
			invariants.Assertf(e.Pos == from+Position(i), "cache: event %d read at %d", e.Pos, from+Position(i))
		}
	}
	return events, next, nil
}

// droppedError returns the error of a read at a position that was dropped.
func (l *Log) droppedError(from Position) error {
	if uint64(from) < l.epoch.Load() {
		return ErrReset
	}
	return ErrTooOld{Oldest: l.Oldest()}
}

// After returns the position of the first event after a revision, or Next if there is none yet. If the revision is in
// the future, the caller must drop events up to it.
func (l *Log) After(revision int64) (Position, error) {
	for {
		low, high := l.ring.First(), l.ring.Next()
		at, ok := l.search(low, high, revision)
		// Read Oldest last. It only grows within an epoch, so events after it existed during the search.
		if oldest := l.Oldest(); revision < oldest {
			return 0, ErrTooOld{Requested: revision, Oldest: oldest}
		}
		if ok {
			return at, nil
		}
	}
}

// search is a binary search. ok is false if an event that it needed was dropped meanwhile.
func (l *Log) search(low, high Position, revision int64) (at Position, ok bool) {
	for low < high {
		middle := low + (high-low)/2
		e := l.ring.at(middle)
		if e == nil {
			return 0, false
		}
		if e.Revision > revision {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return low, true
}

// append adds one revision's events and drops events beyond the limits.
func (l *Log) append(events []*Event) {
	if len(events) == 0 {
		return
	}
	var cost int64
	for _, e := range events {
		cost += e.cost()
	}
	l.discardOld(events[0].time, len(events), cost)
	budget := events[0].schema().budget
	budget.makeRoom(l, len(events), cost)
	if l.bytes.Add(cost) == cost {
		budget.logs.Store(l, nil)
	}
	budget.addLogBytes(cost)
	l.ring.Append(events...)
}

// repair replaces the event of a corrupt object, if the log still has it. No reader has passed that event.
func (l *Log) repair(r repair) {
	at, _ := l.search(l.ring.First(), l.ring.Next(), r.corrupt.Revision()-1)
	for ; ; at++ {
		e := l.ring.at(at)
		switch {
		case e == nil || e.Revision != r.corrupt.Revision():
			return
		case e.Object == r.corrupt:
			e.frames.retire(e.schema().budget)
			l.ring.Replace(at, &Event{Pos: e.Pos, Revision: e.Revision, Object: r.sound, Prev: e.Prev, time: e.time, Last: e.Last})
			return
		}
	}
}

// discardOld drops the oldest revisions until the log, including the events about to be added, is within the limits of
// its config.
func (l *Log) discardOld(now int64, adding int, cost int64) {
	first, next := l.ring.First(), l.ring.Next()
	for first < next {
		e := l.ring.at(first)
		length := int(next-first) + adding
		tooMany := length > l.config.MaxEvents || l.bytes.Load()+cost > l.config.MaxBytes
		old := now-e.time > int64(l.config.KeepFor)
		if !tooMany && !(old && length > l.config.MinEvents) {
			return
		}
		first = l.dropRevision(first)
	}
}

// canDrop reports whether the log has more than MinEvents, including the events about to be added, or more than
// minBytes without them.
func (l *Log) canDrop(adding int) bool {
	length := l.Len()
	return length > 0 && (length+adding > l.config.MinEvents || l.Bytes() > minBytes)
}

// dropOldest drops the oldest revision because the Budget is exhausted, and counts its events.
func (l *Log) dropOldest() {
	first := l.ring.First()
	schema := l.ring.at(first).schema()
	schema.pressure.events.Add(int64(l.dropRevision(first) - first))
}

// tryDropOldest is dropOldest for a goroutine that does not hold writer. It returns false if the lock is taken or
// nothing can be dropped.
func (l *Log) tryDropOldest() bool {
	if !l.writer.TryLock() {
		return false
	}
	defer l.writer.Unlock()
	if !l.canDrop(0) {
		return false
	}
	l.dropOldest()
	return true
}

// dropRevision drops the events of the oldest revision and returns the position
// after them.
func (l *Log) dropRevision(first Position) Position {
	var e *Event
	for e == nil || !e.Last {
		e = l.ring.at(first)
		budget := e.schema().budget
		budget.addLogBytes(-e.cost())
		if l.bytes.Add(-e.cost()) == 0 {
			budget.logs.Delete(l)
		}
		e.frames.retire(budget)
		if e.Prev != nil {
			e.Prev.retire()
		}
		first++
	}
	// Set oldest first, and then drop the whole revision in one step: After must not find
	// a part of a revision.
	l.oldest.Store(e.Revision)
	l.ring.Discard(first)
	return first
}

// restart drops everything and begins a new epoch at a revision.
func (l *Log) restart(revision int64) {
	// Set epoch first, so that reads at older positions get ErrReset.
	l.epoch.Store(uint64(l.ring.Next()) + 1)
	for first := l.ring.First(); first < l.ring.Next(); {
		first = l.dropRevision(first)
	}
	l.ring.Skip()
	l.oldest.Store(revision)
}
