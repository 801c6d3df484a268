// Package bench holds workloads for Kubernetes API servers.
//
// It sees a server only through the network and, where the server runs on the same machine,
// through its entry in /proc. It imports nothing of Larder, so that the same workload measures
// Larder, kube-apiserver and any other server that a kubeconfig names. A workload is a Config and
// a function that runs it and returns a [Result]:
//
//   - [Read]: GET of an object, a collection or a selection
//   - [WatchList]: the start of an informer
//   - [Watch]: changes that are delivered to watchers; some watchers may never read
//   - [Hold], [Storm]: watches that are opened, stay idle, or are all opened again at once
//   - [Write], [PatchObjects], [Components], [Custom]: writes of several kinds
//   - [Mixed]: reads, lists and writes in fixed proportions
//   - [Slow]: large lists that are requested at once and read slowly, beside watches
//   - [Flood]: one user's reads beside another user who sends as much as the server answers
//   - [Start]: from exec to /readyz
//   - [Seed]: creates the pods that the others read and change
//
// The packages below use them:
//
//   - compare measures Larder beside kube-apiserver and beside the limit
//   - cluster simulates the components of a cluster, rollout runs stock components
//   - crds measures CRDs, starts measures starts on stored objects and many servers beside each other
//   - scenario runs several workloads at the same time
//   - testservers starts servers, baseline is the server that sends bytes from memory
//   - stages plans how load changes with time, thresholds compares results with bounds
//   - report writes results
//
// A workload has no flags, no globals and no output of its own. Programs and tests decide what to
// run and how to show it; cmd/larder-bench is one of them.
//
// # What is reported
//
// A Result has:
//
//   - operations, and failures of three kinds: timeouts, answers of 429, all others
//   - answers by status, retries, and bytes of bodies
//   - the latency of each operation that succeeded, in a histogram of three significant digits
//   - wall time, and the server's CPU time, memory and system calls
//   - the CPU time of this process and of processes beside the server
//   - on demand, operations, failures and latencies of each second
//
// Machines are noisy: compare CPU time per operation of servers that were measured in one run,
// and not wall times of different runs.
//
// With a Rate, or a Plan of rates, a loop is open. Each operation has a time at
// which it is due, and its latency counts from then, also while it waits for the server or for a
// free client. A stall then counts for every operation that it delays. Result.Late counts
// operations that had to wait for a client. Otherwise the loop is closed, and latency counts from
// the request. No latency includes the time of ReadConfig.Between.
//
// # The client
//
// Client and server share the machine. So each client of a workload sends HTTP/1.1 requests from its own
// goroutine, drains bodies through a buffer that stays, and finds the mark of a change in an event
// without decoding the event. After [Target.UseHTTP2] workloads use x/net's HTTP/2 client, with
// the windows that client-go has. Results have the
// CPU time of the client apart from the server's.
//
// # Locks and goroutines
//
// A workload returns when all goroutines that it started have ended: with an error when its
// context ends, and with what it has measured after [Target.Stop]. A [Target] runs one workload
// at a time; a [Target.Clone] may run another at the same time. Any goroutine may call Progress
// and Stop.
package bench
