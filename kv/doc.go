// Package kv is a client of etcd: it reads, writes and watches keys, on a cluster or in a
// server inside this process. That server is package embedded; a program that does not
// import it does not link it.
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
//   - K2, writes: Put and Delete compare one key's revision, and either commit or
//     return what is there. A write that returned an error may or may not have been
//     committed.
//   - K3, watches: a watch delivers every event after the revision that was asked for,
//     in revision order, all events of one revision in one [Batch], none twice. A watch
//     that cannot keep that promise ends with one error response and is closed.
//   - K4, progress: a response with Progress p promises that every event of a
//     revision <= p was delivered before it.
//   - K5, Revision: the revision returned is at least that of every write that
//     was acknowledged before the call.
//   - K6, one history: when the store behind the client turns out to be another
//     one (its cluster id changed) or an older one (its revision or raft term is lower than
//     an answer or a watch has shown), every watch ends with [ErrReplaced]. Revisions
//     learnt before mean nothing then. A caller that holds one without a watch compares
//     Replacements, which counts such changes, and ReplacedRevision, the highest revision
//     of the histories that ended. The count is raised before the answer that shows the
//     replacement is returned: a caller that asks for the revision and then finds the
//     count unchanged may go on using what it learnt before.
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
// where it was until the owner begins to load; only when the store was replaced does it
// become 0. A generation, odd while the owner must reload, is read before and after, so
// that no revision of one history is taken for one of another.
//
// A reader that combines Fresh with a snapshot the owner published must load the
// snapshot before and after Fresh: if the owner reloaded between, Fresh belongs to the
// snapshot before. An owner that loads again must note Fresh before it calls Begin: what
// it then loads must be no older than that.
//
// Once it is known that the store was replaced, nothing is fresh, even before the Tail has
// acted on that, and nothing that was loaded from the store before counts.
//
// A Tail may begin in the past ([TailConfig.Replay]), as far back as the store can
// still be read: the owners load the state of then, and what has happened since is
// delivered like anything else. So a restart need not cost the recent past that the
// process before it remembered. The Tail begins in the past again where the store
// compacted what the Tail had not seen yet: all that the store still has lies behind that
// gap. In a store that was replaced it begins at the present, and later not before that,
// because the past of the new store is not the one that the owners know. A Tail cannot
// notice that the store was restored from a backup while it did not run: restore with a
// raised revision and the older ones marked as compacted, as etcd recommends.
//
// # Server in this process
//
// An [EtcdConfig] says how a store comes to its [Connection] to etcd. A server in this
// process passes each of its answers to [Answers] before it gives the answer to its client,
// in this process or another: so, while it is the only member, its revision is known
// without asking it. Watches are the same code in process as over the network.
//
// # Cluster
//
// A cluster that cannot be reached makes operations wait until their context
// ends, as etcd's client does: give them deadlines. While the cluster answers, the revision
// is read over a connection of its own, without that client, and writes are sent over another,
// which carries many at once; what they do not carry is left to that client, in particular
// values that are larger than the member takes at once, and everything while a member is slow
// or gone. A read or a watch moves to another member by itself; a write that fails is not tried
// again, because it may have been committed, unless the member said that it did not look at it. Watches ask etcd to end them while there is no leader, and
// the Tail opens them again where they ended.
//
// Progress (K4) is only believed of members that never report it ahead of events, as etcd
// does from 3.4.31 and 3.5.13 on; each member is asked for its version whenever it begins to
// serve a watch, through all endpoints. The first answer of the member counts; an endpoint
// that did not answer the last time is asked last. Members of older versions, and those
// that do not answer, are watched without a prefix: each revision has an event somewhere,
// so the events alone show how far the watch has come. For that, Larder's user of etcd must
// be allowed to read all keys.
//
// Servers that only imitate etcd, as kine does, can be used, within their limits:
// transactions write one key, and a watch that begins in the future or at the compacted
// revision ends with an error. Such a server may compact by itself, and keep what it was
// told to compact: how far the past reaches is found out by reading it.
//
// # Compaction
//
// Every interval a store competes for the key "compact_rev_key" exactly as
// kube-apiserver does, so any number of Larders and kube-apiservers on one etcd
// keep one compactor and at least one interval of revisions. When the store is replaced,
// the state of this protocol is forgotten, and so are the leases that the store granted.
//
// # Locks and goroutines
//
// Etcd: revisions.mu, leases.mu, history.mu, watches.mu, watch.mu, members.mu and direct.mu are
// leaves; watch.mu is held while a request is sent, direct.mu until one is answered.
// Tail: Tail.mu > Subscription.mu; while they are held, the only call to the Store is
// Replacements, which does not block. Run starts all goroutines but one per Watch, which
// ends with the watch; Run waits for all of them.
//
// # Bytes
//
// Values given to Put belong to the store once Put was called. Values returned by
// Get, Range and watches are shared and never written by anyone; in process they
// may be etcd's own memory.
package kv
