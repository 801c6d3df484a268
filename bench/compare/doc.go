// Package compare measures kube-apiserver, Larder and the limit: a bare TLS server that sends Larder's responses
// from memory. One run measures all three on one machine, over one etcd.
//
// Each row of the table is a workload of package bench. The servers run it in turn, and most figures
// are the best of all rounds, because other load on the machine only makes them worse. The figures of
// tail latencies (B35, B36) are medians, because a single round may have no slow request. The memory of
// an open watch (B26) is that of the worst round.
// The table compares the CPU time of the servers' processes. The JSON also has
// latencies, memory, system calls, and the CPU time of etcd and the client.
//
// In rows of watches, a separate Larder makes the changes, except for the limit. These rows therefore have the cost of
// following etcd, encoding and delivering, but not of writing. All other servers are stopped meanwhile, because each
// of them would follow the changes too. The same holds in the mixed load (B36) and in rows of writes. In rows of
// reads, the server that is not measured makes the changes.
package compare
