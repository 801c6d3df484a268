// Package cluster simulates the components of a cluster as a load on its API server: N kubelets
// and kube-proxies, the controller manager and the scheduler. Their informers, heartbeats and
// writes for replaced pods are described in docs/bench.md.
//
// [Run] starts etcd and one server at a time, and simulates the same cluster at each. All components connect, the
// load runs for a while, and the server restarts. When all informers have synced, Run compares their contents with
// consistent lists. Requests are due at fixed times, from which latency counts.
//
// Each component is a user with a client certificate, and NodeRestriction limits each node to its
// own objects. The client decodes only names and versions, to leave CPU time to the server.
// The report has the CPU time of the client.
//
// All goroutines of a simulation end before Run returns. An informer holds its lock while it calls its node. The node
// then takes its own lock, and those of the informers of mounted objects.
package cluster
