// Package identity finds out who sends a request, and as whom.
//
// [Authentication] asks the authenticator that it was given, whose word about a connection
// it takes for a second: of a secret it keeps no more than a digest under a key of this
// process, in the connection's own slot. A credential that is not accepted is never taken for
// none. [Headers] are the fields of a request that say who asks, of which nothing behind may
// know. [Impersonation] lets who may act as another do so.
//
// Nothing here answers a request, but for what upstream's filter of impersonation has to say
// to whom it refuses.
//
// Everything may be used from any goroutine and has no lock of its own. There are no
// goroutines.
package identity
