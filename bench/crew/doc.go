// Package crew lets several processes be the clients of one workload.
//
// A [Leader] starts the processes, each of which runs a share of the load with a [Member] as its
// Target's Gate. Measured parts begin in all of them at the same time: each process says that
// it is ready and waits for the word. The Leader accounts for what the server uses, and adds up
// what the members have counted: histograms have the same buckets everywhere, so that nothing
// is lost.
//
// Members talk to their leader in lines of JSON on their standard output, and hear of it on
// their standard input; when that ends, they end their workload gracefully.
package crew
