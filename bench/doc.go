// Package bench holds workloads for Kubernetes API servers.
//
// It sees a server only through the network and, where the server runs on the
// same machine, through its entry in /proc: nothing of Larder is imported, so
// the same workload judges Larder, kube-apiserver and any other server that a
// kubeconfig names. A workload is a Config and a function that runs it and
// returns a [Result]:
//
//   - [Read]: GET of an object, a collection or a selection
//   - [WatchList], [Inform]: the start of an informer, raw and by client-go
//   - [Watch]: changes sent to many watchers, to few of many, beside stuck ones
//   - [Hold], [Storm]: watches that are opened, idle, or all opened again at once
//   - [Write], [PatchObjects]: creates, patches, applies, deletes
//   - [Mixed]: all of these in proportion
//   - [Slow]: large lists requested at once and read slowly, beside watches
//   - [Start]: from exec to /readyz
//   - [Seed]: creates the realistic pods that the others read and change
//
// The packages below run them: compare holds Larder against kube-apiserver and
// against the limit, scale plots how costs grow, testservers starts servers, baseline is
// the server that sends bytes from memory, scenario runs several workloads that a file
// describes, cluster plays the components of a cluster, stages plans how a load changes with time, thresholds holds results against bounds and
// against an earlier run, report shows what was found. None
// owns state: no flags, no globals, no output of its own. Programs and tests
// decide what to run and how to show it; cmd/larder-bench is one.
//
// # What is reported
//
// A Result has operations, failures of three kinds (timeouts, answers of 429, all others),
// answers by their status, bytes of body, wall time, the server's CPU time,
// memory and system calls over the run, the usage of this process and of others beside
// the server, and the latency of every operation that succeeded in a histogram of three
// significant digits; on demand, all of it but the costs for each second.
// Machines are noisy: compare CPU per operation between servers measured in one
// run, not wall times between runs.
//
// With a Rate, or a [Shape] that plans rates, a loop is open: every operation has a time at
// which it should begin, and its latency counts from there, however long it had to wait for
// the server or for a free client: a stall counts for all that it holds up. Result.Late counts
// those that no client was free for. Without one it is closed and latency counts from the
// request. What ReadConfig.Between takes is in no latency of either.
//
// # The client
//
// Client and server share the machine, so workloads write HTTP/1.1 requests to crypto/tls
// themselves, drain bodies through buffers that stay, and find the mark of a change in an event
// without decoding the event. Results have the CPU time of the client apart from the server's.
// After [Target.UseHTTP2] workloads use x/net's HTTP/2 client, with the windows that client-go
// has; informers of client-go follow the same choice.
//
// # Locks and goroutines
//
// A workload returns when all goroutines that it started have ended: with an error when its
// context ends, and with what it has measured after [Target.Stop]. A [Target] may
// run one workload at a time, and a [Target.Clone] another; any goroutine may call its Progress
// and Stop meanwhile.
package bench
