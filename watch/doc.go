// Package watch delivers the changes of one resource to watchers.
//
// # Model
//
// A [Watcher] is a position in a [cache.Log] and a filter: a namespace, a name, a label selector, a field selector and
// a shard. It has no queue. It starts from a [cache.Snapshot], whose objects it delivers first, or from a revision. In
// both cases it then follows the Log, so it misses nothing and repeats nothing.
//
// A [Hub] reads one resource's Log for all watchers. Watchers with equal filters share a group. The Hub evaluates a
// filter once per group and event, and appends selected events to the group's chain, which all its watchers read. Some
// watchers need events from before the chain: they resume at an old revision, have just finished their initial objects,
// or are slow. They read the Log themselves, with the same filter, up to the start of the chain, and join there.
//
//	Watch(Initial)                Watch(After)
//	      |                            |
//	      v                            v
//	+-----------+   objects done  +-----------+
//	| replaying | --------------> | catching  | <----+
//	+-----------+                 |    up     |      |
//	      |                       +-----------+      | the chain was cut
//	      |                         |       |        | behind the watcher
//	      |                  lapped |       v        |
//	      |                         |   +--------+   |
//	      |                         |   |  live  | --+
//	      |                         |   +--------+
//	      |                         v       |
//	      |  Close, new epoch   +--------+  |
//	      +-------------------> | closed | <+
//	                            +--------+
//
// Close, the end of an epoch and a corrupt object lead from every state to closed.
//
// The Hub does not examine all groups for an event. Each group is indexed by the first of these keys that its filter
// fixes:
//
//   - namespace and name of an object
//   - one exact value of a field or label
//   - the name, or the namespace
//   - the first byte of the hashes in its shard
//   - nothing
//
// The Hub finds the groups of an event by its key, and by the object's values before and after the change.
//
// # Transitions
//
// An object is selected if the filter matches it.
//
//	before          now             delivery
//	not selected    selected        [Added]
//	selected        selected        [Modified]
//	selected        not, or deleted [Deleted], with the object before and the event's revision
//
// The object before is the store's, even if the watcher has not delivered it. (apiserver
// pkg/storage/cacher/cache_watcher.go has the same rule.)
//
// # Guarantees
//
// These hold for every Watcher within an epoch (see below). Package watchtest checks them.
//
//	W1 Ordered       Initial objects come in key order. After them revisions never
//	                 decrease.
//	W2 Unique        An event is delivered at most once. Nothing after the initial
//	                 objects has a revision at or below their Snapshot's;
//	                 nothing at or below the requested revision is delivered.
//	W3 Reliable      Between the start and the last delivery no event that the
//	                 filter selects is missing. A watcher that would miss one ends
//	                 with [cache.ErrTooOld] instead.
//	W4 Atomic        The events of one revision come from one call of Next or Poll, with
//	                 nothing between them.
//	W5 Resumable     A Watcher started after the revision of the last delivery, or
//	                 of a bookmark, continues exactly there, as long as the Log
//	                 reaches back.
//	W6 Bookmarkable  A bookmark of revision R promises: every selected event at or below
//	                 R has been delivered, and none at or below R will follow.
//	W7 Filtered      The filter's transitions are delivered, and nothing else.
//
// # Slow watchers
//
// A slow watcher does not delay others. A chain holds at most 1024 revisions for a watcher that does not read. After
// that the watcher falls back to the Log. Once the Log has dropped the next event, the watcher is lapped: Next returns
// [cache.ErrTooOld]. There is no timeout. A watcher that reads its initial objects keeps their Snapshot in memory, so
// its caller must set a deadline for writes to the client.
//
// # Epochs
//
// When the Cache is reloaded ([cache.Cache.Reset]) its Log restarts, and all watchers end with io.EOF. A live watcher
// first delivers the rest of its chain; others drop undelivered events. Their clients can resume if the new Log reaches
// back to their revision. The same happens when Run ends. If the store was replaced by another history, for example a
// restored backup, watchers end with [ErrReplaced]: their clients must list again.
//
// # Corrupt objects
//
// An object with an error (a stored value that cannot be decoded) has no labels or fields. It is in no shard, and only
// empty selectors select it. A watcher that would deliver it ends with [cache.CorruptError]; the others continue.
//
// # Locks
//
//	Hub.mu
//		group.mu
//
// Selectors, lock-free readers of the Cache and [Options].Wake are called with these locks held; no other functions
// outside the package are. A Watcher has no lock: one goroutine at a time may call its methods, except [Watcher.Close]
// and [Watcher.LastRevision].
//
// # Goroutines
//
// [Hub.Run] starts none: it publishes the events and wakes the watchers. A Watcher runs on its caller's
// goroutine.
//
// # Bytes
//
// Objects and frames are shared by all responses that send them, and never modified.
// [Delivery.Frame] returns the frame that was built once for an event, type and encoding.
package watch

// Implementation:
//
// A chain is a singly linked list whose last node is always empty and open. The Hub fills the open
// node and publishes it by linking the next one. A watcher holds the node that it reads next, so the
// garbage collector frees nodes that all watchers of a group have read. A ring per group would keep
// its last events alive, read or not.
//
// After Config.backlog nodes the Hub ends the chain with a truncated node, and starts a new chain without a link from
// the old one.
//
// A watcher that finds its node open sets armed and checks the node again. The Hub links a node and then checks armed.
// One of the two sees the other, so no wake-up is lost.
