// Package cache holds the present state and the recent past of one resource,
// and answers every read of it.
//
// # Model
//
// A [Cache] has one writer and any number of readers. The writer, a [Reflector],
// hands it batches in revision order, one batch per revision of the store. Each
// batch publishes a new [Snapshot], an immutable tree of [Object]s ordered by
// key, and appends what changed to the [Log], a ring that forgets its oldest
// events first. A Snapshot names the [Position] in the Log at which it was
// taken, so reading the one and then following the other misses nothing and
// repeats nothing:
//
//	s := c.Snapshot()
//	page, err := s.List(cache.Query{Prefix: "default/"}, nil)
//	...
//	events, next, err := c.Log().Read(s.Position(), nil)
//
// A Reflector may begin in the past, so that the Log reaches back to before the start of
// the process. The Cache is ready when it has come to the present of the start.
//
// An Object is one stored value, encoded and ready to serve: its key, its
// revision, its labels and selectable fields in a compact form, and one
// canonical encoding. Other encodings are made when first asked for, shared by
// all who ask, and kept as far as a [Budget] allows, which several caches may share.
//
// A List that pins the value of an indexed field or label looks only at what has that
// value; of several indexes it takes the one that leads to the fewest objects. Indexes
// are declared in the [Schema], or learnt: a Cache counts, by label, the objects that
// queries have scanned in vain, and makes an index of a label that would have spared many.
// An index belongs to the states that it was published with, so a query finds by it what a
// scan would find.
//
// A [Shard] divides the objects by a hash of their identity or namespace. The first bits of
// the hash of an identity are kept with each object, where they take no room; a cache whose
// schema knows identities also keeps a tree of hashes, 16 bytes for an object, so that a List of
// a Shard need not look at the objects of others.
//
// # Guarantees
//
//   - A Snapshot is exact: it holds every change up to its Revision and nothing
//     later. A batch is in it whole or not at all.
//   - Revision is the newest revision for which that is known, which may be
//     later than the last change of this resource: a [Source] says how far the
//     store was followed. A Snapshot that is taken after another has no lower one,
//     and [Cache.At] knows it, while the cache is loaded again as well, until the store is
//     replaced by another.
//   - The Snapshot is never behind the Log: a reader of an event finds it in
//     every Snapshot taken afterwards.
//   - [Cache.At] gives the exact state of any revision that the Log reaches.
//   - The Log holds every change after [Log.Oldest], in order, each revision
//     whole. A reader that the ring has lapped gets [ErrTooOld] and must read a
//     Snapshot again; it is never given a gap.
//   - [Cache.Reset] starts a new epoch: every position taken before it answers
//     [ErrReset].
//   - No Snapshot mixes two histories of the store. Its History says which one it shows.
//   - A stored value that cannot be decoded becomes a corrupt Object, which has an error. A
//     List that covers it fails, a Get of it returns the error, all other keys are served,
//     and its deletion is an event like any other. A Reflector tries again every few
//     seconds, many of them in turn; an object that can be decoded by then takes the place
//     of the corrupt one without an event.
//   - [Cache.Retire] ends a Cache that is not kept current any more. It goes on to show
//     what it held, at the revision of then.
//
// Apply and Reset are deterministic: they start no goroutine, read no clock (the
// batch carries the time) and do no I/O.
//
// # Bytes
//
// Every byte reachable from a Snapshot or an Event is shared by all responses
// that send it. It is written once, before publication, and never after. Callers
// of [NewObject] give the body away.
//
// # Locks
//
// Readers of Snapshot, List, Get, the Log and encodings already made take no
// lock. What is indented is taken while what stands above it is held:
//
//	Cache.mu          the writer: Apply, Reset, forget, Retire
//		Budget.mu     of one Budget at a time
//	cell.mu           one encoding while it is made
//		cell.mu       of another encoding that its encoder asks for
//		Schema.mu     names of fields, learned while decoding
//		Budget.mu     the order of what is kept
//	learner.mu        what queries cost; readers only try it
//	offers.mu         objects of writes whose events have not arrived
//
// Encoders may ask for other encodings of their object, but not in a circle.
//
// # Goroutines
//
// A Cache starts none. [Reflector.Run] starts workers that decode and one that makes
// indexes, and waits for them.
//
// # Reading the source
//
// Start with object.go and cache.go; then state.go (what a batch does to the
// trees), ring.go and log.go (the past), checkpoints.go (exact old revisions),
// list.go (queries), learn.go (learnt indexes), encoding.go (shared bytes),
// budget.go (how many of them are kept), reflector.go (how objects get in).
package cache
