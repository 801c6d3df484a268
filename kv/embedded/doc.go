// Package embedded keeps a [kv.Store] in an etcd server that runs inside this process.
// Whoever imports it links etcd's server; package kv alone is etcd's client.
//
// # Guarantees
//
// Those of package kv, through the same code as with a cluster. Acknowledged writes
// survive kill -9 and power loss, unless UnsafeNoFsync is set.
//
// The server is called in process, without gRPC; it listens on nothing but a unix socket
// in a directory of mode 0700 inside the data directory, for etcdctl. One process may use
// a data directory. While the server is the only member, its revision is known without
// asking it: each answer that it gives, to this process or through the socket, is taken
// note of before it is given. Each watch has a stream of its own, so that no other watch
// can hold back its progress.
//
// A disk that stalls holds up writes, and reads of what only the database knows; all end
// at their contexts' deadlines, and Revision is not held up. Reads that were given up go
// on until the disk lets them; only so many are begun, and others wait for a place.
//
// What cannot be read when the store is opened, because it is damaged or there is no room,
// is an error of Run. What cannot be stored later ends the process, by [Config].Die: a
// server that went on would acknowledge what is lost.
//
// # Space
//
// Nobody needs to look after the database. When it reaches its quota, etcd refuses
// writes with its own error; then old revisions are given up, the room is given to the
// file, and etcd is told to write again. Deletions, reads and watches go on meanwhile.
// A database of which most is free is made smaller from time to time; writes wait for
// that.
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
