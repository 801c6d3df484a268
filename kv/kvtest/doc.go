// Package kvtest has replacements and helpers for etcd that the tests of several packages share.
//
// [Memory] is an in-memory model of a kv.Store. It keeps all versions of all keys, so that
// compaction, reads of the past and watches behave as etcd's do. A test can make it fail, lag, end
// its watches, or return to an older state. Its only clock is the time package and it does no I/O,
// so it runs inside a synctest bubble. The conformance tests of package kv also run over it.
//
// [Member] and [Kine] are processes of real stores. A [Client] bypasses the servers under test.
package kvtest
