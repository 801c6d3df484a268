package cache

import (
	"sync"
	"sync/atomic"

	"github.com/larder-io/larder/internal/invariants"
)

// Budget limits the memory of its caches besides the bodies of their current objects: secondary encodings, frames, and
// objects that only the Logs still hold. When the limit is exceeded, encodings and frames are dropped first, and
// rebuilt on demand. Then Logs drop events early, the largest Log first.
//
// Recently used encodings stay, and if there is no other, a new encoding is not kept. Otherwise a client that
// repeatedly lists more than the Budget holds would never find a kept encoding (E4). Frames and expensive encodings are
// urgent: others are dropped for them.
//
// A share is a Budget for some of the caches. Other caches may use only the part that it leaves unused (E6).
type Budget struct {
	limit  int64
	growth *Growth // nil: the limit does not grow
	parent *Budget // of a share: also counts the bytes of the share; nil without a fixed limit

	total    atomic.Int64 // of encodings and frames, with their overhead
	logBytes atomic.Int64
	shares   atomic.Int64  // total and logBytes of the shares of this Budget
	bodies   atomic.Int64  // of the present objects of all caches
	logs     sync.Map      // of *Log: the Logs that hold events
	round    atomic.Uint32 // the Budget's clock: counts how often refused has reached the limit

	mu       sync.Mutex // guards the list of kept encodings and frames, refused, and additions to total
	sentinel keptBytes  // of that circular list: sentinel.newer is the oldest element, sentinel.older the newest
	refused  int64      // bytes not kept in this round
}

const (
	// idleRounds is how many rounds an encoding must be unused to be dropped for another.
	idleRounds = 4
	// maxTries is how many encodings are examined to find an idle one. For an urgent encoding the search for one that
	// is not urgent continues to maxUrgent.
	maxTries  = 8
	maxUrgent = 32
)

// NewBudget returns a Budget of limit bytes; 0 or less means no limit.
func NewBudget(limit int64) *Budget {
	b := &Budget{limit: limit}
	b.sentinel.older, b.sentinel.newer = &b.sentinel, &b.sentinel
	return b
}

// NewShare returns a Budget with its own limit; 0 or less keeps nothing. If b has a fixed limit, the share is a part of
// it.
func (b *Budget) NewShare(limit int64) *Budget {
	share := NewBudget(max(limit, 1))
	if b.limit > 0 {
		share.parent = b
	}
	return share
}

// Growth configures a Budget that grows with the bodies (E5). Encodings and frames may take half as much as the bodies.
// Together with the Logs' past events they may take twice as much.
type Growth struct {
	MinEncodings int64 // minimum limit of encodings and frames
	MinTotal     int64 // minimum limit of encodings, frames and past events
	Max          int64 // maximum of both limits; greater than 0
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
		return min(max(g.MinEncodings, b.bodies.Load()/2), g.Max)
	}
	return b.unshared()
}

// TotalLimit returns the bytes allowed for encodings, frames and the Logs' past events, 0 or less for no limit.
func (b *Budget) TotalLimit() int64 {
	if g := b.growth; g != nil {
		return min(max(g.MinTotal, 2*b.bodies.Load()), g.Max)
	}
	return b.unshared()
}

// unshared returns the part of a fixed limit that the shares do not use.
func (b *Budget) unshared() int64 {
	if b.limit <= 0 {
		return 0
	}
	return max(b.limit-b.shares.Load(), 1)
}

// count adds bytes, which may be negative, to one of the Budget's sums.
func (b *Budget) count(sum *atomic.Int64, bytes int64) int64 {
	if b.parent != nil {
		b.parent.shares.Add(bytes)
	}
	return sum.Add(bytes)
}

// excess returns by how many bytes a limit will be exceeded after an addition.
func (b *Budget) excess(added int64) int64 {
	limit, all := b.Limit(), b.TotalLimit()
	if limit <= 0 {
		return 0
	}
	encodings := b.total.Load() + added
	return max(encodings-limit, encodings+b.logBytes.Load()-all, 0)
}

// touch records the round in which s was used. It writes only once in each round, so that readers do not contend.
func (b *Budget) touch(s *keptBytes) {
	if now := b.round.Load(); s.round.Load() != now {
		s.round.Store(now)
	}
}

// add publishes s in its cell if there is room, or room can be made.
func (b *Budget) add(owner *cells, s *keptBytes) {
	if b.insert(owner, s) && b.parent != nil {
		b.parent.evictExcess()
	}
}

// insert is add without making room in b.parent. It reports whether s was published.
func (b *Budget) insert(owner *cells, s *keptBytes) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	// retire sets the flag before it looks for bytes to drop, so either the flag is seen
	// here or the bytes are seen there.
	if owner.state.Load()&retired != 0 {
		return false
	}
	if !b.roomLocked(s.cost(), s.urgent) {
		s.schema.CountRefused()
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
	cost := size + keptOverhead
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
		s := b.sentinel.newer
		if s == &b.sentinel || tries >= maxTries && !urgent {
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

// refuseLocked counts an encoding that is not kept. When their bytes reach the limit, the next round begins.
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
	if b.parent != nil {
		b.parent.evictExcess()
	}
}

// evictExcess drops encodings, even those in use, until the limits hold or none is left.
func (b *Budget) evictExcess() {
	if b.excess(0) == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.sentinel.newer != &b.sentinel && b.excess(0) > 0 {
		b.evictLocked(b.sentinel.newer)
	}
}

// makeRoom makes the largest Logs drop events until own has room for an addition. The writer of own calls it. It stops
// at another Log that is being written, because that Log's writer makes room.
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

// exhausted reports whether Logs alone will exceed the limit after an addition.
func (b *Budget) exhausted(added int64) bool {
	all := b.TotalLimit()
	return all > 0 && b.logBytes.Load()+added > all
}

func (b *Budget) appendLocked(s *keptBytes) {
	s.older, s.newer = b.sentinel.older, &b.sentinel
	s.older.newer, s.newer.older = s, s
}

func (b *Budget) unlinkLocked(s *keptBytes) {
	s.older.newer, s.newer.older = s.newer, s.older
	s.older, s.newer = nil, nil
}

// evictLocked drops s to make room, and counts the eviction.
func (b *Budget) evictLocked(s *keptBytes) {
	if s.frame {
		s.schema.pressure.frames.Add(1)
	} else {
		s.schema.pressure.encodings.Add(1)
	}
	b.dropLocked(s)
}

func (b *Budget) dropLocked(s *keptBytes) {
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

func (s *keptBytes) cost() int64 { return int64(s.allocated) + keptOverhead }

// largestLog returns the Log with the most bytes among those that can drop events. The size of own includes the events
// that are about to be added: adding is their number, cost their bytes.
func (b *Budget) largestLog(own *Log, adding int, cost int64) (largest *Log) {
	var bytesHeld int64
	if own.canDrop(adding) {
		if largest, bytesHeld = own, own.Bytes()+cost; bytesHeld > b.TotalLimit()/2 {
			return own // the usual case: no other Log can hold much more
		}
	}
	for other := range b.logs.Range {
		l := other.(*Log)
		if bytes := l.Bytes(); bytes > bytesHeld && l.canDrop(0) {
			largest, bytesHeld = l, bytes
		}
	}
	return largest
}
