// Package fleet starts the servers that workloads compare: etcd, a stock
// kube-apiserver, Larder, and what else a program wants to run beside them.
//
// Each is a process of its own in a process group of its own, on free ports of the
// loopback device, with its files and its log below the Fleet's directory. A Server
// belongs to the Fleet that started it: it ends by [Server.Stop], or with the others
// by [Fleet.Close], first asked and then killed, always by its id; on Linux it also
// ends when this process does. All servers of a Fleet share one etcd, its keys and
// its users, so that any of them can be asked by the same token.
//
// A Fleet is used by one goroutine.
package fleet
