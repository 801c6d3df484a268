// Package consistency proves what replicas of Larder promise together while etcd's
// members and they themselves fail. It has no code but tests.
//
// Three etcd members and two Larders, with -stock a kube-apiserver too, run as processes
// of their own; what they say to each other passes through a network that can be cut.
// Writers, readers and watchers of resources of several shapes use all replicas at once,
// and so do informers of client-go, in every form; others change several objects in one
// transaction of etcd, while a nemesis kills, stops and isolates members and replicas, the
// leader first of all, moves its office, and compacts the history, also under a replica
// that is apart or just starts, as its seed says. Watchers resume where they were or long
// before. Everything that was asked and answered is kept, and compared afterwards with the
// truth: what an independent watch on etcd saw from the first revision on.
//
//   - R, replay: every list equals the state at the revision that it names, all pages
//     of a list together included.
//   - F, freshness: a consistent read is at least as new as every write that was
//     acknowledged, to anyone, before the read began.
//   - X, exactly once: a write that was acknowledged happened once, where it was said
//     to; one that was refused did not happen; one of unknown outcome at most once.
//   - A, atomicity: of a transaction everything happened at one revision, or nothing.
//   - M, monotony: the revisions of one client's consistent reads do not go back,
//     whichever replica answers.
//   - D, digests: a version of an object is the same, byte for byte, whichever replica gives
//     it and in whatever answer.
//   - I, informers: what an informer tells its handler of an object does not go back, and comes
//     twice only when all was listed again; in the end it has what is stored.
//   - B, labels: one process never gives a list or a bookmark a lower revision than it had
//     given another of the same resource before, in whatever form and however asked for,
//     nor a lower one than was asked for; and every page of a list that it begins can be
//     read. TestLabels writes to several resources at very different paces for that.
//   - W, watches: the guarantees of package watch, over resumes at the other replica. A
//     response that ends well does not end within a revision.
//
// kube-apiserver is held to all of this but for revisions that change several objects, which
// nobody makes through it: it may give a part of one. And it may say that a revision is too
// old that was before its start.
//
// TestRestored sets a single member back to a backup without raising its revision, under
// two Larders, and expects that nobody is shown the lost history afterwards, and that
// informers end with what is stored.
//
// TestMutants shows for each oracle which mistakes of a server it finds. A run in which
// too little was written, or in which no fault hit, proves nothing and fails as invalid.
//
//	go test ./cmd/larder/internal/consistency -run TestHistory -duration 10m -seed 7
//
// runs longer; a run prints its seed. -faults REGEXP has but these happen, -stock PATH adds
// the kube-apiserver of that path.
package consistency
