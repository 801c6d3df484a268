// Package kv is an etcd client. It reads, writes and watches keys in a cluster or in a server in this process, which
// package embedded runs.
//
// # Model
//
// A [Store] is etcd's multi-version map. Every committed write gets the next revision; all keys written by one
// transaction share a revision. [Etcd] is a Store over a cluster ([NewExternal]) or over a server in this process
// (package embedded). Package kvtest has an in-memory model. All three pass the same conformance tests.
//
// # Guarantees
//
//   - K1, reads: Get and Range at revision 0 are linearizable. A Range at a revision returns exactly
//     the state of that revision, or ErrCompacted, or ErrFutureRevision.
//
//   - K2, writes: Put and Delete compare one key's revision, and either commit or return the key's
//     present state. A write that returned an error may or may not have been committed.
//
//   - K3, watches: a watch delivers every event after the requested revision, in revision
//     order, all events of one revision in one [Batch], and no event twice. A watch that cannot keep
//     this promise ends with one error response and is closed.
//
//   - K4, progress: a response with Progress p promises that every event of a revision <= p was
//     delivered before it.
//
//   - K5, Revision: the revision returned is at least that of every write that was acknowledged
//     before the call.
//
//   - K6, one history: the store may be replaced by another one, whose cluster id differs. It may also be replaced by
//     an older state: a response then has a lower revision or raft term than an earlier response or watch response.
//     Then every watch ends with [ErrReplaced], and earlier revisions are invalid.
//
//     Replacements counts these changes, and ReplacedRevision is the highest revision of the
//     replaced histories. The count is raised before the response that shows the replacement is
//     returned. So a caller that holds a revision without a watch reads the
//     revision and then the count. If the count is unchanged, earlier responses are still valid.
//
// # Tail
//
// A [Tail] watches everything under one prefix. A [Subscription] queues the events under its own prefix for its owner.
// In Larder the owner is the cache.Reflector of a resource:
//
//	Store
//	  | one Watch of "/registry/"
//	  v
//	Tail -----------------------> other Subscriptions
//	  | events below the prefix
//	  v
//	Subscription "/registry/pods/"
//	  | Batches, one for each revision
//	  v
//	cache.Reflector <------------ Store, Range: the objects to begin with
//	  | decoded objects
//	  v
//	cache.Cache ----------------> reads
//	  | Log
//	  v
//	watch.Hub ------------------> watch.Watchers
//
// A consistent read gets the store's revision and waits until the owner has applied it ([Subscription.Wait]). An idle
// subscription is known to be as fresh as the busiest one, because all share the watch.
//
// [Subscription.Fresh] is a revision up to which the owner of a Subscription has applied everything. It depends on this
// order:
//
//  1. The Tail queues a batch to its subscriptions, and then raises the revision that it has seen.
//  2. The owner applies a batch, and then calls Applied.
//  3. Fresh reads the revision seen, and then the progress of the owner. If all batches are applied,
//     Fresh is the revision seen, or that of the last batch if it is higher. Otherwise it is the
//     revision before the first batch that is not applied.
//
// So Fresh never decreases within one history of the store.
//
// A reader that combines Fresh with a snapshot of the owner must read the snapshot before and after Fresh. If the two
// snapshots are of different loads, Fresh belongs to the first. An owner that reloads must read Fresh before it calls
// Begin, and load nothing older.
//
// A Tail may begin in the past ([TailConfig.Replay], [Clock]), but not before the last compaction. The owners load the
// state of that revision and then receive the events since, so a restarted process has the recent events. A later
// subscription reads its past from the store, unless the Tail knows that nothing has changed below its prefix. If the
// store compacted events that the Tail had not seen, the Tail begins in the past again, after that gap. In a replaced
// store it begins at the current revision. A Tail cannot detect that the store was restored from a backup while no Tail
// ran. Restore with a raised revision, and mark older ones as compacted, as etcd recommends.
//
// # Server in this process
//
// [EtcdConfig].Open makes the store's [Connection]. A server in this process passes the header of each response to a
// [ResponseRecorder] before the client gets it. So the revision is known without a request.
//
// # Cluster
//
// While a cluster cannot be reached, operations wait until their context ends, as in etcd's client. There are three
// kinds of connections:
//
//   - one HTTP/2 connection reads the revision, one request at a time;
//   - a second one sends transactions, many at once;
//   - etcd's client sends all other requests, transactions that the second one cannot send, and everything while a
//     member is slow or unreachable.
//
// A read or a watch moves to another member by itself. A failed write may have been committed, so it is not retried,
// unless the member reports that it did not process it. etcd ends watches while there is no leader; the Tail resumes
// them.
//
// K4 requires members that never report progress ahead of events: etcd from 3.4.31 and 3.5.13 on. When a member begins
// to serve a watch, the store asks all endpoints for that member's version and uses the first response. If the member
// is older or does not respond, the store watches the whole key space: each revision has an event in it, so the events
// alone prove progress. For that, the etcd user must be allowed to read all keys. Before a member confirms a watch, it may
// report progress although it sends the past events later, so the store ignores such reports. If an event still follows
// progress to its revision, the watch ends, and the owners of the Tail's subscriptions load again.
//
// Other implementations of etcd's API, such as kine, work within their limits: transactions write one key, and a watch
// that begins in the future or at the compacted revision ends with an error. Such a server may compact by itself, or
// ignore requests to compact, so the Tail finds the oldest readable revision by trying.
//
// # Compaction
//
// Every interval a store competes for the key "compact_rev_key" exactly as kube-apiserver does. So only one of all
// servers on an etcd compacts, and at least one interval of revisions is kept. A server whose etcd user may use only
// the keys below the prefix cannot compact. When the store is replaced, the state of this protocol and the leases of
// the old store are discarded.
//
// # Locks and goroutines
//
// The locks of Etcd are leaves: revisionReader.mu, leaseManager.mu, history.mu, watches.mu and watch.mu.
// watch.mu is held while a request is sent, and leaseManager.mu while Observer.LeaseObjects
// is called. For a Tail, Tail.mu > Subscription.mu. While they are held, the only call to the Store
// is Replacements, which does not block. Run starts all goroutines except those of a
// Watch, which end with the watch. Run waits for all of them.
//
// # Bytes
//
// Put takes ownership of its value. Values returned by Get, Range and watches are shared and must not be modified; in
// process they may be etcd's own memory. Values of a page requested with RangeOptions.Borrow may be overwritten once
// the page is released.
package kv
