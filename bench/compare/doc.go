// Package compare holds Larder against a stock kube-apiserver and against the limit,
// a bare TLS server that sends the very bytes that Larder answered, on one machine,
// over one etcd, in one run.
//
// Every row of its table is a workload of package bench. Its servers take turns, and
// each figure is the best of all rounds: load from elsewhere only ever adds to it.
// What is compared is the CPU time of the server's process; latencies, memory, system
// calls, and what etcd and the client used beside it, are in the results that the
// table keeps.
//
// Changes that watchers are told of are written through the other one of the two
// servers, so that a row of watches holds what it costs to follow etcd, to encode and
// to deliver, and nothing of what it costs to write.
package compare
