// Package consistency checks what replicas of Larder guarantee together while they and etcd's
// members fail. It has only tests.
//
// Three etcd members and two Larders (with -stock a kube-apiserver, too) run as processes, over a
// network that the test can cut. Writers, readers, watchers and informers use all replicas at once,
// and transactions change several objects. Meanwhile members and replicas are killed, stopped
// and isolated, the leader moves, and history is compacted, as the seed says. All requests and
// answers are then compared with what an independent watch on etcd saw from the first revision on:
//
//   - R, replay: every list, with all its pages, equals the state at the revision that it names.
//   - F, freshness: a consistent read is at least as new as every write that was acknowledged
//     before the read began.
//   - X, exactly once: an acknowledged write happened once, at its revision; a refused one did not
//     happen; one of unknown outcome happened at most once.
//   - A, atomicity: of a transaction everything happened at one revision, or nothing.
//   - M, monotony: the revisions of one client's consistent reads do not go back on any replica.
//   - D, digests: a version of an object has the same bytes in every answer of every replica.
//   - I, informers: an object does not go back for an informer's handler, and comes twice only after
//     a relist. In the end the informer has what is stored.
//   - B, labels: a process never gives a list or bookmark a lower revision than an earlier one of
//     the resource, or than was asked for, and every page of a list can be read. TestResourceVersionsNeverGoBack writes
//     to several resources at very different rates for that.
//   - W, watches: the guarantees of package watch, over resumes at the other replica. A response
//     that ends well does not end within a revision.
//
// kube-apiserver may give a part of a revision that changes several objects, and may say that a
// revision from before its start is too old.
//
// TestRestoredStoreHidesLostHistory restores a backup in a single member without raising its revision, under two
// Larders. Nobody may see the lost history afterwards, and informers must end with what is stored.
//
// TestOraclesFindMutants shows for each check which mistakes of a server it finds. A run with too few writes,
// or in which no fault hit, fails as invalid. A run prints its seed:
//
//	go test ./cmd/larder/internal/consistency -run TestHistory -duration 10m -seed 7
//
// -faults REGEXP limits the faults, -stock PATH adds the kube-apiserver of that path.
package consistency
