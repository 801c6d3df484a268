// Package compare holds Larder against a stock kube-apiserver and against the limit,
// a bare TLS server that sends the very bytes that Larder answered, on one machine,
// over one etcd, in one run.
//
// Every row of its table is a workload of package bench. Its servers take turns, and
// each figure is the best of all rounds: load from other processes only ever adds to it. That
// of a tail (B35, B36) is the median, for in one round nothing may happen to be slow.
// The table compares the CPU time of the server's process; latencies, memory, system
// calls, and the usage of etcd and the client, are in the results that the table keeps.
//
// Changes for watchers are written through the other one of the two servers, so that a
// row of watches has the cost of following etcd, encoding and delivering, and none of the
// cost of writing. In rows of writes the other server is ended, and in rows of tails (B35, B36)
// all servers that take no part are paused, for each of them follows what is written. In the
// latter changes are made through a server of its own, whichever is measured.
package compare
