// Package bench holds workloads for Kubernetes API servers.
//
// It reaches a server over the network, and reads /proc if the server runs on the same machine.
// It imports no package of Larder, so a workload can measure any server that a kubeconfig names.
// A workload is a Config and a function that runs it and returns a [Result]:
//
//   - [Read]: GET of an object, a collection or a selection
//   - [WatchList]: the initial list of an informer, as a watch
//   - [Watch]: changes that are delivered to watchers; some watchers may never read
//   - [Hold], [Storm]: watches that stay idle, or that all reconnect at once
//   - [Write], [Patch], [Components], [Custom]: writes of several kinds
//   - [Mixed]: reads, lists and writes in fixed proportions
//   - [Slow]: large lists that are requested at once and read slowly, while watches receive changes
//   - [Flood]: reads of one user, alone and while another user sends as many requests as the server serves
//   - [Seed]: creates the pods that other workloads read and change
//
// A workload has no flags, no globals and no output. The caller, such as cmd/larder-bench or a test, decides what to
// run and how to show the results.
//
// Machines are noisy. Compare the CPU time per operation of servers that were measured in one run, not wall
// times of different runs.
//
// With a Rate, or a Plan of rates, the loop is open. Each operation is due at a certain time, and its latency counts
// from then, so a stall counts for every operation that it delays. Result.Late counts operations that had to wait
// for a free client. Without a rate the loop is closed, and latency counts from the request.
//
// # The client
//
// Client and server may share a machine, so the client must be cheap. Each client of a workload sends
// HTTP/1.1 requests from its own goroutine and reads bodies into a buffer that it reuses. It finds the
// mark of a change in an event without decoding the event. After [Target.UseHTTP2] workloads use
// x/net's HTTP/2 client, with client-go's windows. Results report the CPU time of client and server separately.
//
// # Locks and goroutines
//
// A workload returns when all goroutines that it started have ended. When its context ends, it returns
// an error. After [Target.Stop], it returns the results so far. A [Target] runs one workload at a time;
// a [Target.Clone] may run another concurrently. Any goroutine may call Progress and Stop.
package bench
