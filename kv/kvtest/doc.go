// Package kvtest holds an in-memory model of a kv.Store and the suite that every
// kv.Store passes.
//
// [Memory] keeps all versions of all keys, so that compaction, reads of the past
// and watches behave as etcd's do, and can be made to misbehave: fail, lag, end
// its watches, or come back as an older state of itself. It uses the time package
// alone for its clock and no I/O, so it runs inside a synctest bubble.
//
// [Conformance] holds the guarantees of package kv as tests.
package kvtest
