// Package kv remembers: it keeps keys, values and revisions in etcd, on a cluster or in
// this process, and tells what changed. It is a client: the server for this process is
// package embedded, and only who imports that links it.
//
// # Model
//
// A [Store] is etcd's multi-version map. Every committed write gets the next
// revision; all keys written by one transaction share theirs. Two stores exist:
// [Etcd], which serves both a cluster ([NewExternal]) and a server in this process
// (package embedded) through one client code, and the in-memory model of package
// kvtest. One conformance suite runs over all of them.
//
// # Guarantees
//
//   - K1, reads: Get and Range at revision 0 are linearizable. A Range at a
//     revision returns exactly what was there at that revision, or ErrCompacted,
//     or ErrFutureRevision.
//   - K2, writes: Put and Delete compare one key's revision and commit or tell
//     what is there. A write that returned an error may or may not have been
//     committed.
//   - K3, watches: every event after the asked revision, in revision order, all
//     events of one revision in one [Batch], none twice. A watch that cannot keep
//     that promise ends with one error response and is closed.
//   - K4, progress: a response with Progress p promises that every event of a
//     revision <= p was delivered before it.
//   - K5, Revision: the revision returned is at least that of every write that
//     was acknowledged before the call.
//   - K6, one history: when the store behind the client turns out to be another
//     one (cluster id changed) or an older one (revision or raft term went back, behind
//     what an answer or a watch has shown), every watch ends with [ErrReplaced].
//     Revisions learnt before mean nothing; Replacements tells those who hold one
//     without a watch, Lost up to where they go. It is raised before
//     the answer that shows the replacement is returned: a caller that asks for the
//     revision and then finds the count unchanged may go on using what it learnt before.
//
// # Tail
//
// A [Tail] follows everything under one prefix through one watch and hands each
// [Subscription] its part, so that the revisions of all parts move together: an
// idle part is as fresh as the busiest one. Freshness is a pair of promises with
// an order between them. The Tail queues a batch to its subscriptions first and
// says afterwards what it has seen; the owner of a Subscription applies a batch first and
// calls Applied afterwards. Fresh therefore reads what was seen first, then the revision
// of the first batch that is not applied, then that of the last which is: if there is no
// first, everything that had been seen is applied, else everything before the first. So
// Fresh never goes back, whatever is queued. When the owner loses its place, Fresh stays
// where it was until the owner begins to load; only of a history that is no more nothing
// is promised. A generation, odd while the owner must reload, is read before and after,
// so that no label of one history is given to another.
//
// A reader that combines Fresh with a snapshot the owner published must load the
// snapshot before and after Fresh: if the owner reloaded between, Fresh belongs to the
// snapshot before. An owner that loads again must keep what Fresh was before it calls
// Begin, which what it loads is to be no older than.
//
// Nothing is fresh any more once it is known that the store was replaced, even before the
// Tail has acted on that, and nothing that was loaded from the one before counts.
//
// A Tail may begin in the past ([TailConfig.Replay]), as far back as the store can
// still be read: the owners load the state of then, and what has happened since is
// delivered like anything else, where it is long by several watches at once. So a
// restart need not cost what the process before it remembered. So it begins again
// where the store compacted what the Tail had not seen yet: what is left lies behind
// the gap. In a store that was replaced it begins at the
// present, and later not before that, because its past is that of another store. It cannot
// notice that the store was restored from a backup while it did not run: restore with a raised revision
// and the older ones marked as compacted, as etcd recommends.
//
// # Server in this process
//
// What opens etcd is an [Opening], and what it gives a [Session]. That of a server in
// this process hands each answer to [Answers] before anybody gets it, to this process or
// past it: while the server is the only member, its revision is known without asking it.
// Watches are the same code in process as over the network.
//
// # Cluster
//
// A cluster that cannot be reached makes operations wait until their context
// ends, as etcd's client does: give them deadlines. While all is well the revision is
// read over a connection of its own, without that client. A read or a watch moves to
// another member by itself; a write that fails is not tried again, because it may
// have been committed. Watches ask etcd to end them while there is no leader, and
// the Tail opens them again where they ended.
//
// Progress (K4) is only taken from members that report it soundly, as etcd does from
// 3.4.31 and 3.5.13 on; each is asked for its version whenever it begins to serve a
// watch, through all endpoints. The first answer of the member counts; an endpoint that
// swallows questions is waited for last. Others, and members that do not tell, are watched
// without a prefix: as each revision has an event, the watch tells by itself how far it
// has come. For that, a user of etcd must be allowed to read all keys.
//
// What only imitates etcd, as kine does, serves too, with its limits: transactions
// write one key, and a watch that begins in the future or at the compacted revision
// ends with an error. It may compact by itself, and keep what it was told to give up: how
// far the past reaches is found out by reading it.
//
// # Compaction
//
// Every interval a store competes for the key "compact_rev_key" exactly as
// kube-apiserver does, so any number of Larders and kube-apiservers on one etcd
// keep one compactor and at least one interval of history. What was noted of a store that
// was replaced is forgotten, as are the leases that it granted.
//
// # Locks and goroutines
//
// Etcd: revisions.mu, leases.mu, history.mu, watches.mu, watch.mu, members.mu and direct.mu are
// leaves; watch.mu is held while a request is sent, direct.mu until one is answered.
// Tail: Tail.mu > Subscription.mu, both leaves towards the outside; neither is
// held across a call to the Store but Replacements, which does not block. Goroutines are
// started by Run alone, but one per Watch, which ends with the watch; Run waits for all of
// them.
//
// # Bytes
//
// Values given to Put belong to the store once Put was called. Values returned by
// Get, Range and watches are shared and never written by anyone; in process they
// may be etcd's own memory.
package kv
