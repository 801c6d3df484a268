// Package writes serves create, update, patch, apply, delete and deletecollection.
//
// # Pipeline
//
// An [Endpoint] serves the writes of one resource or subresource in one API version, built-in or
// custom. [Endpoint.Serve] receives a request that is authenticated and authorized and has a flow
// control seat. It runs these steps in order, usually on the request's own goroutine:
//
//	step                function                          holds afterwards
//	route               Write.routed                      upstream's router would accept the headers
//	begin               Write.begin                       ctx has user, audit and warnings, and ends at the deadline
//	negotiate           Write.negotiate                   the format of the response is known
//	read                Write.readBody                    the body is in memory, within its limits
//	options             Write.decodeOptions               the query parameters are valid
//	decode              Write.decode                      a defaulted object of the internal version, owned by the write
//	identify            Write.checkIdentity, prepareNew   name and namespace are the authorized ones
//	patch               patches.Patch.Apply               the patched object shares no memory with the stored one
//	apply               patched.applyConfiguration        the applied object shares no memory with the stored one
//	managedFields       Write.manage                      managedFields are upstream's
//	mutating admission  Endpoint.admit                    admission has run, and managedFields are valid
//	deduplicate         dedupOwners                       every owner reference is unique
//	validate            rest.BeforeCreate, BeforeUpdate   the object is valid; validating admission has run
//	store               internal/registry/storage         the object is committed, and the cache has its bytes
//	finish              Write.finish                      a failed Status or a missed deadline is an error
//	respond             Write.respond, Write.refuse       the response is complete, from the stored bytes if possible
//	count               Write.observe                     the request is in the metrics
//
// Custom resources have no internal version: the version of the request takes its place.
// A verb skips the steps that it does not need. A create runs each step once. For an update or a patch
// the storage passes the stored object to a callback that returns the new object
// (rest.UpdatedObjectInfo): the steps from patch to deduplicate run inside [change.UpdatedObject]. They run
// again after a conflict. An update then decodes its body again, because the storage changes the object that
// it receives.
//
// If etcd rejects an object because of its size, the write retries once without managedFields, as
// upstream does. An apply does not retry: its managedFields are part of the request.
//
// # Deadlines and disconnects
//
// ctx ends at the deadline of the request, when the client disconnects, or, except for deletecollection, 34 s after the
// write begins. Over HTTP/1.1 a disconnect is detected within a second. A write canceled before the store step has
// changed nothing. During that step the outcome is unknown, as in kube-apiserver; the client gets a 504. A conversion
// webhook does not delay the 504: a write that may call one runs its steps from patch to store on a goroutine that may
// outlive the request. An admission plugin that ignores ctx, such as the quota plugin, delays the 504 until it returns.
// kube-apiserver responds at the deadline and leaves the plugin running.
//
// # Guarantees
//
// Statuses, texts, warnings, audit events, metrics and spans are those of upstream's handlers
// (apiserver pkg/endpoints/handlers). This package shares their leaf packages: negotiation, codecs,
// managedfields, rest, admission. A panic ends the request and nothing else.
//
// # Memory, locks and goroutines
//
// Only [Write.finish] starts goroutines, for writes that may call a conversion webhook. Nothing waits for one that outlives
// its write; it keeps the write's flow control seat until it ends, and a call to a webhook ends after 30 s. The package's
// only lock guards the warnings, which plugins may add from their own goroutines.
//
// An object belongs to the write from decode until the storage returns. The storage may return the same object. The
// response usually consists of the cache's bytes ([storage.Written]). If upstream's encoder must write it, the stored
// bytes are decoded first.
package writes
