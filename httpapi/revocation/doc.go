// Package revocation ends watches whose senders lose the right that they began with.
//
// A watch was authenticated and authorized when it began, and may last for an hour.
// [Rights.Join] enters by what right a watch is open: watches of the same sender for the
// same share one, so that a thousand of them cost one question. Once a second [Rights.Run]
// looks at what rights rest on, counters of changes and revisions of objects; while nothing
// of that changes, they cost nothing. Whom a change concerns is authenticated and authorized
// once more. Webhooks and providers, which do not tell of changes, are asked again every
// three seconds.
//
// # Guarantees
//
// A watch ends within five seconds of losing its right, as one ends that is complete; a
// client that does not read that is cut off. What is decided in this process ends at once,
// however slow others are. A webhook or provider that does not answer ends no watch, and is
// asked again.
//
// # Goroutines
//
// Run looks at rights, and waits for no answer. What it has to ask is asked in three pools,
// so that a slow answer delays only its own pool: what is decided in this process, by up to
// eight goroutines; what others authenticate, and what others authorize, by up to
// [RemoteCrowd] each. Run waits for all of them.
//
// # Locks
//
// All are leaves: those of the ledger of rights, of the pools, and of the answers.
//
// # Secrets
//
// What is held of a credential is held for as long as one of its watches is open.
package revocation
