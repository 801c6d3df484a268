// Package revocation ends watches whose senders lose the right that they began with.
//
// A watch was authenticated and authorized when it began, and may last for an hour.
// [Rights.Join] enters the right by which a watch is open: watches that a client opens for the
// same resource with the same credentials share one right, so that a thousand of them cost one
// question. Once a second [Rights.Run] looks at what rights rest on, counters of changes and
// revisions of objects; while these stay the same, rights cost nothing. Run authenticates and
// authorizes once more the credentials that a change concerns. Webhooks and providers do not
// tell of changes, so Run asks them again every three seconds.
//
// # Guarantees
//
// A watch ends within five seconds of losing its right. It ends as a watch does whose time is
// up; a client that does not read the end is cut off. A right that this process decides about
// ends at once, however slow webhooks and providers are. If a webhook or provider does not
// answer, its watches go on, and it is asked again.
//
// # Goroutines
//
// Run looks at rights, and waits for no answer. Three pools ask its questions, so that a slow
// answer delays only its own pool: one for what this process decides, with up to eight
// goroutines; one for what providers and webhooks authenticate, and one for what webhooks
// authorize, with up to [RemoteConcurrency] each. Run returns after all of them have ended.
//
// # Locks
//
// The locks of the table of rights, of the pools and of the answers are all leaves.
//
// # Secrets
//
// A credential, with its secrets, is held for as long as one of its watches is open.
package revocation
