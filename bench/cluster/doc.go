// Package cluster simulates the components of a cluster as a load on its API server: N kubelets
// and kube-proxies, the controller manager and the scheduler. Their informers, heartbeats and
// writes for replaced pods are described in docs/bench.md.
//
// [Run] starts etcd and the servers itself, one server at a time, and simulates the same cluster
// at each. All components connect; the load goes on for a while; the server is stopped and
// started again. When all informers are back, their contents are compared with consistent
// lists. Requests are due at fixed times, and latency counts from then.
//
// Each component is a user with a client certificate, and NodeRestriction limits each node to its
// own objects. The client decodes only names and versions, because the server shares the machine.
// The report has the CPU time of the client.
//
// All goroutines of a simulation end before Run returns. An informer calls its node with its own
// lock held, and the node then takes its lock and those of the informers of mounted objects.
package cluster
