// Package testservers starts the servers that workloads compare: etcd, a stock
// kube-apiserver, Larder, and other programs that its caller wants to run beside them.
//
// Each is a process of its own in a process group of its own, on free ports of the
// loopback device, with its files and its log below the Servers's directory. A Server
// belongs to the Servers that started it. [Server.Stop] ends it, or [Servers.Close] with the
// others: they first ask the process to end and then kill it, always by its id; on Linux
// it also ends when this process does. All servers of a Servers share one etcd, its keys and
// its users, so that all of them accept the same token.
//
// A Servers is used by one goroutine.
package testservers
