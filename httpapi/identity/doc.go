// Package identity authenticates the sender of a request, and decides about impersonation.
//
// [Authentication] asks the authenticator that it was given, and reuses its answer for a
// second for requests on the same connection with the same credentials: of a secret it keeps
// only a digest under a key of this process, in the connection's own slot. A request whose
// credentials are not accepted is never treated as one without credentials. [Headers] are the
// header fields that hold credentials, which no code after authentication may see.
// [Impersonation] lets a user impersonate another if the authorizer allows it.
//
// Nothing here answers a request, except that upstream's filter of impersonation writes the
// answer when it refuses one.
//
// Everything may be used from any goroutine and has no lock of its own. There are no
// goroutines.
package identity
