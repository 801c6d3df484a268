// Package embedded provides a [kv.Store] over an etcd server that runs inside this process. It links etcd's server;
// package kv links only etcd's client.
//
// # Guarantees
//
// The store has the guarantees of package kv, through the same code as with a cluster. Acknowledged
// writes survive kill -9 and power loss, unless UnsafeNoFsync is set.
//
// The server is called in process, without gRPC. For etcdctl it also listens on a unix socket in a directory of mode
// 0700 inside the data directory. Only one process may use a data directory. The server rejects other members of its
// cluster. Its revision is known without a request: the store records each response before the client, in
// this process or at the socket, gets it. Each watch has its own stream, so no other watch can hold back its progress.
//
// A stalled disk delays writes, and reads that are not served from memory, but not Revision. All of them end at their
// contexts' deadlines. Writes time out after at most 7 s, as with etcd's default ticks, and etcd may still commit them.
// A read whose caller has left continues in the server until the disk responds. The number of concurrent reads is
// limited, and further ones wait.
//
// Run returns an error if the database is damaged, or if the disk is full when the store is opened. If a later write to
// disk fails, the server calls [Config].Fatal, which must end the process: otherwise the server would acknowledge
// writes that are lost.
//
// # Space
//
// The store maintains its database. When the database reaches its quota, etcd rejects writes with its own error. The
// store then compacts old revisions, defragments the file and disarms etcd's alarm, while deletions, reads and watches
// continue. A database that is mostly free space is defragmented periodically; writes wait for that.
//
// # Locks and goroutines
//
// The package has no locks. The store's Run owns the server's goroutines, one that keeps the database
// within its quota, and one per read, and waits for them.
//
// # Bytes
//
// The rules of package kv apply. Values that are read may be etcd's own memory.
package embedded
