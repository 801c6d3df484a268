// Package compare measures Larder beside kube-apiserver and beside the limit: a bare TLS server that
// sends Larder's answers from memory. One run measures all three on one machine, over one etcd.
//
// Every row of the table is a workload of package bench. The servers take turns, and each figure
// is the best of all rounds, because other load on the machine only makes it worse. The figures of
// tails (B35, B36) are medians, because a single round may have no slow request.
// The table compares the CPU time of the servers' processes. The results behind it also have
// latencies, memory, system calls, and the CPU time of etcd and the client.
//
// For rows of watches, a separate Larder makes the changes. So these rows have the cost of
// following etcd, encoding and delivering, but not of writing. All other servers are stopped
// meanwhile, as for the mixed load (B36) and in rows of writes, because each of them would follow the
// changes too. In rows of reads the other server makes the changes.
package compare
