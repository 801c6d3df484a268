// Package cache holds the current state and the recent past of one resource, and serves all reads
// of that resource.
//
// # Model
//
// A [Cache] has one writer and any number of readers. The writer, a [Reflector], applies batches in
// revision order, one batch for each revision of the store. Each batch publishes a new [Snapshot] and
// appends the changes to the [Log]. A Snapshot is an immutable tree of [Object]s, ordered by key. The Log is a
// ring that drops its oldest events first. A Snapshot names the [Position] in the Log at which it was taken.
// So a reader that takes a Snapshot and then follows the Log misses nothing and repeats nothing:
//
//	s := c.Snapshot()
//	page, err := s.List(cache.Query{Prefix: "default/"}, nil)
//	...
//	events, next, err := c.Log().Read(s.Position(), nil)
//
// An Object is one stored value, encoded and ready to serve. It has a key, a revision, labels and
// selectable fields in a compact form, and one canonical encoding. Other encodings are made on first
// use, shared by all readers, and kept as long as a [Budget] allows. Several caches may share one
// Budget.
//
// A List that requires one value of an indexed field or label looks only at the objects with that value. If several
// indexes apply, it uses the one with the fewest objects. Indexes are declared in the [ResourceSchema] or learnt: for
// each label key, a Cache counts the objects that queries scanned but did not return. It builds an index if that avoids
// many such scans. A state and its indexes are published together, so a query finds the same objects with an index as
// with a scan.
//
// A [Shard] selects objects by a hash of their identity or namespace. The identity is the key, unless
// [ResourceSchema.IdentifyBy] sets another. Then each Object holds the first bits of its hash, and a cache also has a
// tree of hashes, 16 bytes for each object. So a List of a Shard does not read the objects of other shards.
//
// # Guarantees
//
//   - A Snapshot is exact: it holds every change up to its Revision and nothing later. It holds a
//     batch as a whole or not at all.
//   - Revision is the newest revision for which the Snapshot is known to be exact. It may be later
//     than the last change of this resource: a [Source] reports how far it has followed the store. A later
//     Snapshot never has a lower Revision, unless the store was replaced. [Cache.At] accepts this
//     revision, even during a reload.
//   - The Snapshot is never behind the Log: after a reader has read an event, every Snapshot that it
//     takes contains the change.
//   - [Cache.At] returns the exact state of any revision that the Log reaches.
//   - The Log holds every change after [Log.Oldest], in order, and each revision as a whole. A
//     reader that the ring has lapped gets [ErrTooOld] and must take a new Snapshot; it never
//     misses events silently.
//   - [Cache.Reset] starts a new epoch: reading from an earlier position returns [ErrReset].
//   - No Snapshot mixes two histories of the store. [Snapshot.History] identifies its history.
//   - A stored value that cannot be decoded becomes a corrupt Object, which has an error. A List that covers it fails,
//     and a Get returns the Object with its error. All other keys are served. Its deletion is an ordinary event. Every
//     15 seconds a Reflector retries up to a thousand corrupt objects, and more as long as some succeed. A decoded
//     object replaces the corrupt one, also in its event and in past states, without another event.
//   - After [Cache.Retire] a Cache no longer changes. It still serves its last objects, at their last revision.
//
// Apply and Reset are deterministic: they start no goroutine, read no clock (the batch carries the
// time) and do no I/O.
//
// # Bytes
//
// Every byte reachable from a Snapshot or an Event is shared by all responses that send it. It is
// written once, before publication, and never after. [NewObject] takes ownership of a body that it does not pack.
//
// # Locks
//
// Readers of Snapshot, List, Get, the Log and existing encodings never wait for a lock. An
// indented lock is taken while the one above it is held:
//
//	Cache.mu          applying a batch, installing a learnt index or a repaired object, dropping old events
//		offers.mu     objects of writes whose events are not applied
//		Budget.mu     the order of kept encodings; of one Budget at a time
//		Cache.mu      of another cache, by TryLock: its Log drops events for a shared Budget,
//		              with Budget.mu
//	cell.mu           one encoding while it is made
//		cell.mu       of another encoding that the encoder requests
//		Budget.mu
//	learner.mu        what queries cost; a List uses TryLock
//	ResourceSchema.mu names of fields
//
// Encoders run with cell.mu held. They may request other encodings of their object, but the requests
// must not form a cycle. Decode, Offer's functions and OnAppend run without any of these locks.
//
// # Goroutines
//
// A Cache starts none. [Reflector.Run] starts one that loads and applies, and itself builds indexes, drops old events
// and retries corrupt objects. During a replay another goroutine waits to make the cache ready. Workers decode large
// batches. Run waits for all of them.
package cache
