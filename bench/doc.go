// Package bench holds workloads for Kubernetes API servers.
//
// It reaches a server through the network, and reads /proc if the server runs on the same machine.
// It imports no package of Larder: the same workload measures Larder, kube-apiserver and any other
// server that a kubeconfig names. A workload is a Config and a function that runs it and returns a [Result]:
//
//   - [Read]: GET of an object, a collection or a selection
//   - [WatchList]: the start of an informer
//   - [Watch]: changes that are delivered to watchers; some watchers may never read
//   - [Hold], [Storm]: watches that are opened, stay idle, or are all opened again at once
//   - [Write], [PatchObjects], [Components], [Custom]: writes of several kinds
//   - [Mixed]: reads, lists and writes in fixed proportions
//   - [Slow]: large lists that are requested at once and read slowly, beside watches
//   - [Flood]: the reads of one user while another user sends as many requests as the server answers
//   - [Seed]: creates the pods that the others read and change
//
// The packages below use them:
//
//   - compare measures Larder beside kube-apiserver and beside the limit
//   - cluster simulates the components of a cluster, rollout runs the real ones
//   - crds measures CRDs; starts measures starts on stored objects, and many servers at once
//   - scenario runs several workloads at the same time
//   - testservers starts servers, baseline is the server that sends bytes from memory
//   - stages plans how load changes with time, thresholds compares results with bounds
//   - report writes results
//
// A workload has no flags, no globals and no output of its own. Programs and tests decide what to
// run and how to show it; cmd/larder-bench is one of them.
//
// Machines are noisy: compare CPU time per operation of servers that were measured in one run, and not wall
// times of different runs.
//
// With a Rate, or a Plan of rates, the loop is open: each operation is due at a certain time, and its latency counts
// from then, even while it waits for the server or for a free client. So a stall counts for every operation that it
// delays. Result.Late counts operations that had to wait for a client. Otherwise the loop is closed, and
// latency counts from the request. No latency includes the time of ReadConfig.Between.
//
// # The client
//
// Client and server share the machine, so the client must be cheap. Each client of a workload sends
// HTTP/1.1 requests from its own goroutine, reads bodies into a buffer that it reuses, and finds the
// mark of a change in an event without decoding the event. After [Target.UseHTTP2] workloads use
// x/net's HTTP/2 client, with client-go's windows. Results have the client's CPU time apart from the
// server's.
//
// # Locks and goroutines
//
// A workload returns when all goroutines that it started have ended. When its context ends, it returns
// an error; after [Target.Stop], it returns what it has measured. A [Target] runs one workload
// at a time; a [Target.Clone] may run another at the same time. Any goroutine may call Progress
// and Stop.
package bench
