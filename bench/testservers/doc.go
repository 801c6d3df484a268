// Package testservers starts the servers that workloads measure: etcd, kube-apiserver,
// Larder, and programs that work for them.
//
// Each server is a process in its own process group, on free ports of the loopback
// interface. Its files and its log are below the directory of the [Servers] that started it. All
// servers of a Servers share one etcd, the keys and the users, so all accept the same token.
// [Server.Stop] and [Servers.Close] send SIGTERM to a process, and SIGKILL if it takes too long to end. On
// Linux a process also ends when this process does.
//
// A Servers is not safe for concurrent use, except Identity. [Trials] configures which servers are
// measured in turn.
package testservers
