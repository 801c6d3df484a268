// Package kvtest has an etcd in memory, and helpers for tests with etcd.
//
// [Memory] is an in-memory model of a kv.Store. It keeps all versions of all keys, so that compaction, reads of the
// past and watches behave as etcd's do. A test can make it fail, lag, end its watches, or return to an older state. It
// does no I/O, so it runs inside a synctest bubble. It passes the conformance tests of package kv.
//
// [Member] and [Kine] are processes of real stores. A [Client] bypasses the servers under test.
package kvtest
