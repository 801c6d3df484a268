// Package compare measures Larder beside kube-apiserver and beside the limit: a bare TLS server that
// sends Larder's answers from memory. All run on one machine, over one etcd, in
// one run.
//
// Every row of the table is a workload of package bench. The servers take turns, and each figure
// is the best of all rounds, because other load on the machine only adds to it. The figures of
// tails (B35, B36) are medians: in a single round nothing slow may happen.
// The table compares the CPU time of the servers' processes. The results that the table keeps
// also have latencies, memory, system calls, and the CPU time of etcd and the client.
//
// A separate Larder makes the changes for rows of watches. These rows then have the cost of
// following etcd, encoding and delivering, and not the cost of writing. All other servers are
// paused meanwhile, as in the mixed load (B36), because each of them follows what is written. In
// rows of reads the other server makes the changes. In rows of writes the other server is
// stopped.
package compare
