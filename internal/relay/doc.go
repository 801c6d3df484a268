// Package relay presents one resource of another API server, the upstream, as a [kv.Store]. So caches and watches
// built for etcd run over the upstream's list and watch.
//
// # Model
//
// A [Store] has a key for each object: a prefix, the namespace and the name. The value is the object as
// the upstream sent it: a protobuf message in the envelope that kube-apiserver stores, or JSON with kind and
// apiVersion. Messages are copied without decoding, so fields that this program does not know survive.
// A revision is a resourceVersion. The store is read-only, and a watch is
// always of the whole resource.
//
// # Guarantees
//
// Those of package kv, with these limits and reasons:
//
//   - K1: reads at revision 0 are lists without a resourceVersion. A list at a revision is read in the
//     upstream's pages; the store keeps the latest continue tokens. A page whose token is gone fails
//     with [kv.ErrCompacted].
//   - K3: the store delivers one object for each revision. So it cannot follow Events, because an expired lease
//     deletes several in one revision. A second change at a delivered revision ends the watch
//     with [kv.ErrCompacted], so that the reader reloads.
//   - K4: an event or a bookmark of a watch proves progress up to its revision. Bookmarks come once a minute.
//     [Store.RequestProgress] gets one sooner from a probe: a second watch from the first one's position
//     with a timeout of three seconds, so the upstream sends a bookmark after one second. The probe has
//     seen all events between the position and the bookmark. When the first watch has delivered the last of
//     these events, it has delivered everything up to the bookmark, whichever replicas served the two.
//   - K6: if a consistent list returns a lower revision than an earlier list or watch, the upstream's etcd was
//     restored. Each watch reads the revision before it begins, because a restart of the upstream ends
//     watches. A restore goes unnoticed if the restored etcd passes the old revision before the next read.
//
// # Locks and goroutines
//
// Store.mu and history.mu are leaves. Neither is held during a request or while waiting for a channel. A
// shared read of the revision has one goroutine, a watch three: one delivers, one reads from the
// upstream, one probes. Run waits for all of them.
//
// # Bytes
//
// Each value is a separate allocation that nothing modifies. Pages of lists are limited to
// StoreConfig.MaxPage bytes and to the objects that were asked for, frames to 16 MiB, and errors to 64 KiB.
package relay
