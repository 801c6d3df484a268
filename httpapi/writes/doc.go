// Package writes serves create, update, patch, apply, delete and deletecollection of built-in and
// custom resources and their subresources.
//
// # Pipeline
//
// An [Endpoint] knows one resource or subresource in one API version. [Endpoint.Serve] takes a request
// that is authenticated, authorized and admitted by flow control through these steps, from top to
// bottom on the request's own goroutine. Which of them there are depends on the verb:
//
//	step                  function                          afterwards
//	routed                Write.routed                      upstream's router would have passed it; else metrics do not count it
//	begun                 Write.begin                       ctx ends at the deadline and when the client leaves; it has user, audit, warnings
//	form                  Write.negotiate                   it is known how the answer is written; errors are, too
//	body                  Write.readBody                    the body is in memory, within its bounds, and valid until the request ends
//	options               Write.decodeOptions               what the client asks for beside the object is valid
//	decode                Write.decode                      an object of the hub version with defaults, the write's own; unknown fields are warned of or refused
//	identity              Write.checkIdentity, prepareNew   name and namespace are those that were authorized
//	patch                 patches.Patch.Apply               (patch) the object that the patch makes of the stored one, sharing no memory with it
//	apply                 patched.applyConfiguration        (apply) the same by the field manager, managedFields included
//	managedFields         Endpoint.manage                   managedFields say who has set what, as upstream's field manager has it
//	mutating admission    Endpoint.admit                    admission has changed the object; managedFields are still valid
//	owners                dedupOwners                       no owner is named twice
//	validation            rest.BeforeCreate, BeforeUpdate   (in the storage) the object is valid, and validating admission has seen it as it will be stored
//	store                 internal/registry/storage         (in the storage) it is committed, or nothing is; the cache has been offered what the bytes will be
//	finish                Write.finish                      a Status that tells of a failure has become an error; so has a deadline that has passed
//	answer                Write.answerStored, answer, refuse the response is filled in
//	count                 Write.observe                     upstream's metrics have counted the request
//
// A create runs them once. For an update or a patch the storage asks for the new object, with the stored
// one, by rest.UpdatedObjectInfo: the steps from "patch" to "owners" run inside that call
// ([replacement.UpdatedObject], [patched.UpdatedObject]), and again if another write came between. What
// they start from is not changed by what they make: an update decodes the body again.
//
// If etcd refuses an object for its size, create, update and patch try once more without its
// managedFields, as upstream does.
//
// # Deadlines and clients that leave
//
// ctx ends 34 s after the write has begun, when the deadline of the request has passed, or when the
// client leaves. Webhooks and etcd see that and return; the write is answered by that error (504), and
// whether it took place is not known, as upstream. What does not look at ctx, waiting for a quota for
// example, is not cut short: its answer comes late, where upstream answers 504 at the deadline and goes
// on unseen.
//
// # Guarantees
//
// Status, texts, warnings, audit records, metrics and spans are those of upstream's handlers (apiserver
// pkg/endpoints/handlers), of which this package uses the leaves: negotiation, codecs, field managers,
// rest, admission. A panic ends the request, and no more.
//
// # Memory and goroutines
//
// There are no goroutines and no locks but that of the warnings, which plugins may add from goroutines
// of their own. Objects belong to the write until the storage returns; the storage may keep none. What it
// returns may be the very object that it has stored, not decoded again: the answer is made of the cache's
// bytes ([storage.Written]), and where upstream's encoder makes it, the object is decoded before.
package writes
