// Package checkpoint restores the objects of a server to a named state, so that each test of a
// suite starts with the same objects.
//
// # Model
//
// A checkpoint holds the keys and values that etcd stored at one revision. [Checkpoints.Take]
// reads them. [Checkpoints.Reset] compares them with the current ones and writes the differences.
// Each write is an ordinary write of one key, so caches, watches and informers see a change and
// need not relist. Admission and finalizers do not run: a finalizer that one test leaves behind must not
// affect the next test.
//
// A restored object has its old name, uid, labels and generation, and a new resourceVersion.
//
// # Guarantees
//
//   - If Reset returns no error, the store held the checkpoint's state at the returned revision or a
//     later one, except for the objects under Limits.
//   - Every write is conditional on the compared revision. Keys that others write meanwhile are
//     compared again. After several rounds, Reset returns [ErrBusy].
//   - CRDs and namespaces are restored before anything is deleted. New ones are deleted after
//     their contents.
//   - Config.Await is called before Reset returns. It waits until this server has seen the
//     writes, so that RBAC, webhooks and routing follow the restored state.
//   - With Config.Fence, requests that were received before the last comparison write nothing
//     afterwards. They get a conflict.
//   - Config.Pause is called before anything is restored, and resume afterwards, so that controllers
//     of this process delete no restored object. Outcome.Warnings names controllers that could
//     not be stopped.
//   - A failed Reset may be repeated. It is not rolled back.
//
// Other servers on the same stores are not paused: their requests and controllers may continue to write.
//
// # Limits
//
// Checkpoints exclude the Leases and addresses of API servers. Reset deletes new objects that expire, such as events,
// but does not restore deleted ones. Checkpoints are kept in memory, within limits, until the process ends. A
// checkpoint becomes unusable when a restored backup replaces the store.
//
// # Locks and goroutines
//
// Checkpoints.busy admits one Take or Reset at a time. Checkpoints.mu is a leaf and guards the
// names. Fence.mu is held for reading during a write to the store, which takes the locks of kv. Reset writes from
// several goroutines, which end before it returns.
package checkpoint
