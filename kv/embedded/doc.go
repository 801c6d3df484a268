// Package embedded keeps a [kv.Store] in an etcd server that runs inside this process. A program that
// imports it links etcd's server; package kv alone links only etcd's client.
//
// # Guarantees
//
// The store has the guarantees of package kv, through the same code as with a cluster. Acknowledged
// writes survive kill -9 and power loss, unless UnsafeNoFsync is set.
//
// The server is called in process, without gRPC. For etcdctl it listens on a unix socket in a
// directory of mode 0700 inside the data directory, and nowhere else. One process may use a data
// directory. While the server is the only member, its revision is known without asking it: the store
// notes each answer before a client, in this process or at the socket, gets the answer. Each watch has
// a stream of its own, so no other watch can hold back its progress.
//
// A disk that stalls delays writes, and reads that are not served from memory. All of them end at
// their contexts' deadlines, and writes after 7 s at the latest, as with the default ticks of etcd: then etcd answers that the request timed
// out, and may still commit it. Revision is not delayed. A read whose caller has gone goes on in the
// server until the disk answers. The number of reads under way is bounded, and further ones wait.
//
// Run returns an error if the database is damaged, or if the disk is full when the store is opened. If
// the server cannot store something later, it calls [Config].Fatal, which ends the process: a server
// that went on would acknowledge writes that are lost.
//
// # Space
//
// The database needs no operator. When it reaches its quota, etcd refuses writes with its own error.
// Then the store compacts old revisions, defragments the file and disarms etcd's alarm. Deletions,
// reads and watches go on meanwhile. A database that is mostly free space is defragmented from time to
// time; writes wait for that.
//
// # Locks and goroutines
//
// The package has no locks. The store's Run owns the server's goroutines, one that keeps the database
// within its quota, and one per read, and waits for them.
//
// # Bytes
//
// The rules of package kv hold. Values that are read may be etcd's own memory.
package embedded
