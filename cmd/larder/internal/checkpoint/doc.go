// Package checkpoint brings the objects of a server back to a named state, for test
// suites that want each test to find what the first one found.
//
// # Model
//
// A checkpoint is all that was stored at one revision: keys and values, as they are in
// etcd. [Checkpoints.Take] reads it, [Checkpoints.Reset] compares it with what is stored
// now and writes the differences: what was made since is deleted, what was deleted or
// changed is put back. These are ordinary writes, each of one key at a revision of its
// own, so that every cache, watch and informer sees them as changes and nobody has to list
// again. They ask no admission and no finalizer, which is the point: a test that left an
// object with a finalizer behind must not spoil the next one.
//
// An object that is put back has the name, uid, labels and generation that it had, and
// a new resourceVersion.
//
// # Guarantees
//
//   - When Reset returns without error, there was a revision, not before the one it
//     returns, at which the store held the checkpoint's state, apart from what is left out.
//   - Every write is conditional on what was compared. What others write meanwhile is
//     compared again, a bounded number of times; a store that does not come to rest is told
//     as [ErrBusy].
//   - Definitions and namespaces are put back before anything is deleted; new ones are
//     deleted after what they hold.
//   - Config.Await is called before Reset returns: with it, what decides about requests,
//     roles and webhooks say, has seen the state that was brought back, and what serves them
//     serves what that has and nothing else.
//   - A request that was received before Reset compared for the last time writes nothing
//     afterwards, if Config.Fence stands before the stores: neither does a deletion of a collection
//     go on, nor is an object left in a namespace, or of a definition, that Reset took away. Such
//     a request is answered with a conflict.
//   - Config.Pause is called before anything is put back, and what it returns once that is
//     done: with it, controllers of this process do not delete again what they were deleting,
//     or were about to. Outcome.Warnings names those that it could not stop.
//   - A reset that fails may be repeated; what it has done is not undone.
//
// Other servers on the same stores have no part in this: a request that they have under way, and
// controllers that ask them, may write what they were about to.
//
// # What is left out
//
// The leases and identities by which servers know of each other belong to them, and stay
// as they are. Objects that expire, as events do, are deleted if they were made since, and
// not put back.
//
// # Limits
//
// Checkpoints live in the memory of the process that took them, which bounds their
// number and their bytes. They do not outlive it, nor a store that was replaced by a
// restored backup. With several servers, ask the same one.
//
// # Locks and goroutines
//
// Checkpoints.turn admits one Take or Reset at a time; Checkpoints.mu is a leaf and
// guards the names. Fence.mu is held for reading while a store is written to, and no other lock
// is taken meanwhile. Reset writes from several goroutines, which end before it returns.
package checkpoint
