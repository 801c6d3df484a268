// Package revocation ends watches whose users lose the right to them.
//
// A watch is authenticated and authorized when it begins, and may last for an hour.
// [Rights.Join] records the right by which a watch is open. Watches that a client opens for the
// same objects with the same credentials share one right, so a thousand of them cost one
// check. Once a second, [Rights.Run] reads the counters and revisions that rights depend on. It
// authenticates and authorizes again only the credentials that a change concerns. Webhooks and
// OpenID providers do not report changes, so Run asks them again every three seconds.
//
// # Guarantees
//
// A watch ends within five seconds after its user loses the right to it, like a watch that times
// out. A client that does not read the end is cut off. A right that this process decides
// ends in that time, however slow webhooks and providers are. A webhook or provider may take ten
// more seconds to respond. If it does not respond, its watches continue, and Run asks it again.
//
// # Goroutines
//
// Run starts checks and does not wait for them. Three pools run them, so that a slow check delays only
// its own pool. One is for this process, with up to eight goroutines. One is for providers and webhooks
// that authenticate, and one for webhooks that authorize, with up to [RemoteConcurrency] each. Run
// returns after all of them have ended.
//
// # Locks
//
// All locks are leaves except Rights.mu: while it is held, caches are read and package auth checks a
// credential. A round locks it for each credential separately, so that new watches do not wait for
// the whole round.
//
// # Secrets
//
// A credential, with its secrets, is kept for as long as one of its watches is open.
package revocation
