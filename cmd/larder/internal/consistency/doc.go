// Package consistency checks the guarantees of several Larders together while they and etcd's members
// fail. It has only tests.
//
// Three etcd members and two Larders (with -stock a kube-apiserver, too) run as processes, over a network that the test
// can cut. Writers, readers, watchers and informers use all replicas at once, and transactions change several objects.
// Meanwhile members and replicas are killed, stopped and isolated, the leader moves, and history is compacted; the seed
// decides when. All requests and responses are then compared with the events that an independent watch on etcd has
// received from the first revision on:
//
//   - R, replay: every list, with all its pages, equals the state at the revision that it names.
//   - F, freshness: a consistent read is at least as new as every write that was acknowledged
//     before the read began.
//   - X, exactly once: an acknowledged write happened once, at its revision; a refused one did not
//     happen; one of unknown outcome happened at most once.
//   - A, atomicity: all changes of a transaction happened at one revision, or none.
//   - M, monotony: the revisions of one client's consistent reads do not go back on any replica.
//   - D, digests: a version of an object has the same bytes in every response of every replica.
//   - I, informers: an informer's handler never gets an older state of an object, and gets the same state
//     twice only after a relist. In the end the informer has the stored objects.
//   - B, revisions: the revisions of a process's lists and bookmarks of one resource never decrease, and are
//     never lower than requested. Every page of a list can be read. TestResourceVersionsNeverGoBack writes
//     to several resources at very different rates to check this.
//   - W, watches: the guarantees of package watch, also when watches resume at the other replica. A complete
//     response does not end within a revision.
//
// kube-apiserver may send a part of a revision that changes several objects, and may respond that a revision
// from before its start is too old.
//
// TestRestoredStoreHidesLostHistory restores a backup in a single member without raising its revision, under two
// Larders. No client may see the lost history afterwards, and informers must end with the stored objects.
//
// TestHistoryOfInjectedFaults does the same with one server that injects faults of package httpapi/faults.
//
// TestHistoryThroughRelay does the same with two Larders behind a balancer, and a relay of them as another
// replica. It serves all consistent lists from its caches that it can. Larders and the relay are killed and
// stopped, and the relay is cut off. A relay may respond that a revision is too old.
//
// TestChecksFindMutants shows for each check which mistakes of a server it finds. A run with too few writes,
// or without an effective fault, fails as invalid. A run prints its seed:
//
//	go test ./cmd/larder/internal/consistency -run TestHistory -duration 10m -seed 7
//
// -faults REGEXP limits the faults, -stock PATH adds the kube-apiserver of that path.
package consistency
