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
// Changes for watchers are written through a Larder of its own, whichever server is measured, so
// that a row of watches has the cost of following etcd, encoding and delivering, and none of the
// cost of writing; all servers that take no part are paused meanwhile, as in the mixed load (B36),
// for each of them follows what is written. Changes between reads are written through the other
// one of the two servers. In rows of writes the other server is ended.
package compare
