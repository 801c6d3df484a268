// Package testservers starts the servers that workloads measure: etcd, kube-apiserver,
// Larder, and other programs that run beside them.
//
// Each server is a process in its own process group, on free ports of the loopback
// interface. Its files and its log are below the directory of the [Servers] that started it. All
// servers of a Servers share one etcd, its keys and its users, so that all accept the same token.
// [Server.Stop] and [Servers.Close] ask a process to end, and kill it when it takes too long. On
// Linux a process also ends when this process does.
//
// One goroutine uses a Servers; Identity may be called concurrently. [Trials] says which servers
// take turns to be measured.
package testservers
