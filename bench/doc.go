// Package bench holds workloads for Kubernetes API servers.
//
// It sees a server only through the network and, where the server runs on the
// same machine, through its entry in /proc: nothing of Larder is imported, so
// the same workload judges Larder, kube-apiserver and any other server that a
// kubeconfig names. A workload is a Config and a function that runs it and
// returns a [Result]. The package owns no state: no flags, no globals, no
// output. Programs and tests decide what to run and how to show it.
//
// What is reported: requests, errors, bytes of body, wall time, the server's
// CPU time and resident memory over the run, and the latency of every request
// in a histogram of three significant digits. Machines are noisy: compare CPU
// per operation between servers measured in one run, not wall times between
// runs.
package bench
