package cache

import (
	"sync"
	"sync/atomic"

	"github.com/larder-io/larder/internal/invariants"
)

// Budget limits the bytes that its caches keep besides the bodies of their current objects: secondary
// encodings, frames, and objects that only the Logs still hold. When the limit is exceeded, encodings
// and frames are dropped first, and rebuilt on demand. Then Logs drop events early, the
// largest Log first. Answers stay the same.
//
// Encodings in use stay. If all of them were used lately, a new encoding is not kept. Otherwise a
// reader that repeatedly goes through more than the Budget allows would never find a kept one (E4).
// Frames and expensive encodings are urgent: others are dropped for them.
//
// A share is a Budget for some of the caches. Other caches may use only the part that it leaves unused (E6).
type Budget struct {
	limit  int64
	growth *Growth // nil: the limit does not grow
	whole  *Budget // counts what this share takes; nil if this is no share, or not counted

	total    atomic.Int64 // of encodings and frames, with their overhead
	logBytes atomic.Int64
	shares   atomic.Int64  // total and logBytes of the shares of this Budget
	bodies   atomic.Int64  // of the present objects of all caches
	logs     sync.Map      // of *Log: the Logs that hold events
	round    atomic.Uint32 // counts how often refused has reached the limit

	mu      sync.Mutex // guards the list of kept encodings and frames, refused, and additions to total
	edge    stored     // the sentinel of that circular list: edge.newer is the oldest element, edge.older the newest
	refused int64      // bytes not kept in this round
}

const (
	// idleRounds is how many rounds an encoding must be unused to be dropped for another.
	idleRounds = 4
	// maxTries is how many encodings are examined to find an idle one. For an urgent encoding the search continues to
	// maxUrgent, to find one that is not urgent itself.
	maxTries  = 8
	maxUrgent = 32
)

// NewBudget returns a Budget of limit bytes; 0 or less means no limit.
func NewBudget(limit int64) *Budget {
	b := &Budget{limit: limit}
	b.edge.older, b.edge.newer = &b.edge, &b.edge
	return b
}

// NewShare returns a Budget with its own limit; 0 or less keeps nothing. If b has a fixed limit, the share is
// a part of it, and the caches that use b directly have the rest.
func (b *Budget) NewShare(limit int64) *Budget {
	share := NewBudget(max(limit, 1))
	if b.limit > 0 {
		share.whole = b
	}
	return share
}

// Growth says how a Budget grows with the bodies (E5). Encodings and frames may take half as much
// as the bodies. Together with the Logs' past events they may take twice as much.
type Growth struct {
	Encodings int64 // the least limit of encodings and frames
	All       int64 // the least limit of encodings, frames and past events
	Most      int64 // the highest value of both limits; greater than 0
}

// NewGrowingBudget returns a Budget that grows and shrinks with the bodies.
func NewGrowingBudget(g Growth) *Budget {
	b := NewBudget(0)
	b.growth = &g
	return b
}

// Used returns the bytes that encodings and frames take, including their overhead.
func (b *Budget) Used() int64 { return b.total.Load() }

// LogBytes returns the bytes that only the Logs still hold.
func (b *Budget) LogBytes() int64 { return b.logBytes.Load() }

// Limit returns the bytes allowed for encodings and frames, 0 or less for no limit.
func (b *Budget) Limit() int64 {
	if g := b.growth; g != nil {
		return min(max(g.Encodings, b.bodies.Load()/2), g.Most)
	}
	return b.rest()
}

// LimitOfAll returns the bytes allowed for encodings, frames and the Logs' past events, 0 or less for no limit.
func (b *Budget) LimitOfAll() int64 {
	if g := b.growth; g != nil {
		return min(max(g.All, 2*b.bodies.Load()), g.Most)
	}
	return b.rest()
}

// rest returns the part of a fixed limit that the shares do not use.
func (b *Budget) rest() int64 {
	if b.limit <= 0 {
		return 0
	}
	return max(b.limit-b.shares.Load(), 1)
}

// count adds bytes, which may be negative, to one of the Budget's sums.
func (b *Budget) count(sum *atomic.Int64, bytes int64) int64 {
	if b.whole != nil {
		b.whole.shares.Add(bytes)
	}
	return sum.Add(bytes)
}

// excess returns by how many bytes a limit is exceeded if more bytes are added.
func (b *Budget) excess(more int64) int64 {
	limit, all := b.Limit(), b.LimitOfAll()
	if limit <= 0 {
		return 0
	}
	encodings := b.total.Load() + more
	return max(encodings-limit, encodings+b.logBytes.Load()-all, 0)
}

// used records that s was used. It writes only once a round, so that readers do not contend.
func (b *Budget) used(s *stored) {
	if now := b.round.Load(); s.round.Load() != now {
		s.round.Store(now)
	}
}

// add publishes s in its cell if there is room, or room can be made.
func (b *Budget) add(owner *cells, s *stored) {
	if b.insert(owner, s) && b.whole != nil {
		b.whole.evictExcess()
	}
}

// insert is add without making room in b.whole. It reports whether s was published.
func (b *Budget) insert(owner *cells, s *stored) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	// retire sets the flag before it looks for bytes to drop, so either the flag is seen
	// here or the bytes are seen there.
	if owner.state.Load()&retired != 0 {
		return false
	}
	if !b.roomLocked(s.cost(), s.urgent) {
		s.schema.Refuse()
		return false
	}
	s.round.Store(b.round.Load())
	b.appendLocked(s)
	s.counted().Add(int64(len(s.bytes)))
	b.count(&b.total, s.cost())
	s.cell.kept.Store(s)
	return true
}

// MakeRoom makes room for an encoding of about size bytes, as if it were kept, and reports whether
// there is enough. If not, the caller should write the encoding straight to its response.
func (b *Budget) MakeRoom(size int64) bool {
	cost := size + storedOverhead
	if b.excess(cost) == 0 {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.roomLocked(cost, false)
}

// roomLocked makes room for cost and reports whether there is enough. It drops encodings that were not
// used for idleRounds, and any encoding if urgent is set and there is no other way.
func (b *Budget) roomLocked(cost int64, urgent bool) bool {
	if limit := b.Limit(); limit > 0 && cost > limit {
		return false
	}
	for tries := 0; b.excess(cost) > 0; tries++ {
		s := b.edge.newer
		if s == &b.edge || tries >= maxTries && !urgent {
			b.refuseLocked(cost)
			return false
		}
		idle := b.round.Load()-s.round.Load() >= idleRounds
		if idle || tries >= maxUrgent || tries >= maxTries && !s.urgent {
			b.evictLocked(s)
		} else {
			b.unlinkLocked(s)
			b.appendLocked(s)
		}
	}
	return true
}

// refuseLocked counts an encoding that is not kept. When these add up to the limit, the next round begins.
func (b *Budget) refuseLocked(cost int64) {
	if b.refused += cost; b.refused >= b.Limit() {
		b.refused = 0
		b.round.Add(1)
	}
}

// addLogBytes adds bytes, which may be negative, to the bytes that Logs hold. It drops encodings if the
// limits are exceeded.
func (b *Budget) addLogBytes(bytes int64) {
	b.count(&b.logBytes, bytes)
	b.evictExcess()
	if b.whole != nil {
		b.whole.evictExcess()
	}
}

// evictExcess drops encodings, even those in use, until the limits hold or none is left.
func (b *Budget) evictExcess() {
	if b.excess(0) == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.edge.newer != &b.edge && b.excess(0) > 0 {
		b.evictLocked(b.edge.newer)
	}
}

// makeRoom makes the largest Logs drop events until there is room for an addition to own, whose writer
// calls it. It skips a Log that is being written, because that Log's own writer makes room.
func (b *Budget) makeRoom(own *Log, adding int, cost int64) {
	for b.exhausted(cost) {
		switch largest := b.largestLog(own, adding, cost); {
		case largest == nil:
			return
		case largest == own:
			own.dropOldest()
		case !largest.tryDropOldest():
			return
		}
	}
}

// exhausted reports whether Logs alone exceed the limit if more is added.
func (b *Budget) exhausted(more int64) bool {
	all := b.LimitOfAll()
	return all > 0 && b.logBytes.Load()+more > all
}

func (b *Budget) appendLocked(s *stored) {
	s.older, s.newer = b.edge.older, &b.edge
	s.older.newer, s.newer.older = s, s
}

func (b *Budget) unlinkLocked(s *stored) {
	s.older.newer, s.newer.older = s.newer, s.older
	s.older, s.newer = nil, nil
}

// evictLocked drops s to make room, and counts that.
func (b *Budget) evictLocked(s *stored) {
	if s.frame {
		s.schema.pressure.frames.Add(1)
	} else {
		s.schema.pressure.encodings.Add(1)
	}
	b.dropLocked(s)
}

func (b *Budget) dropLocked(s *stored) {
	b.unlinkLocked(s)
	s.counted().Add(-int64(len(s.bytes)))
	total := b.count(&b.total, -s.cost())
	s.seal.Check(s.bytes, "cache: an encoding or frame that is dropped")
	if invariants.Enabled {
		invariants.Assertf(total >= 0, "cache: budget below zero: %d", total)
		invariants.Assertf(s.cell.kept.Load() == s, "cache: dropped an encoding that is not kept")
	}
	s.cell.kept.Store(nil)
}

func (s *stored) cost() int64 { return int64(s.room) + storedOverhead }

// largestLog returns the Log with the most bytes among those that can drop events. It counts the events that are about
// to be added to own: adding is their number, cost their bytes.
func (b *Budget) largestLog(own *Log, adding int, cost int64) (largest *Log) {
	var most int64
	if own.spare(adding) {
		if largest, most = own, own.Bytes()+cost; most > b.LimitOfAll()/2 {
			return own // the usual case: no other Log can hold much more
		}
	}
	for other := range b.logs.Range {
		l := other.(*Log)
		if bytes := l.Bytes(); bytes > most && l.spare(0) {
			largest, most = l, bytes
		}
	}
	return largest
}
