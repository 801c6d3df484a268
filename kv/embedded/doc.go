// Package embedded keeps a [kv.Store] in an etcd server that runs inside this process.
// A program that imports it links etcd's server; package kv alone is etcd's client.
//
// # Guarantees
//
// Those of package kv, through the same code as with a cluster. Acknowledged writes
// survive kill -9 and power loss, unless UnsafeNoFsync is set.
//
// The server is called in process, without gRPC; it listens on nothing but a unix socket
// in a directory of mode 0700 inside the data directory, for etcdctl. One process may use
// a data directory. While the server is the only member, its revision is known without
// asking it: the store takes note of each answer before the server gives it, to this
// process or through the socket. Each watch has a stream of its own, so that no other watch
// can hold back its progress.
//
// A disk that stalls delays writes, and reads that are not served from memory; all end at
// their contexts' deadlines, and Revision is not delayed. A read whose caller has gone goes
// on in the server until the disk answers; the number of reads under way is bounded, and
// further ones wait.
//
// If the database is damaged, or there is no room on the disk when the store is opened, Run
// returns an error. If the server cannot store something later, it calls [Config].Fatal,
// which ends the process: a server that went on would acknowledge what is lost.
//
// # Space
//
// The database needs no operator. When it reaches its quota, etcd refuses writes with its
// own error; then the store compacts old revisions, defragments the file and disarms etcd's
// alarm. Deletions, reads and watches go on meanwhile. A database of which most is free is
// defragmented from time to time; writes wait for that.
//
// # Locks and goroutines
//
// It has no locks. The server's goroutines, one that looks after the database, and one per
// read belong to the store's Run, which waits for them.
//
// # Bytes
//
// As package kv has it. Values that are read may be etcd's own memory.
package embedded
