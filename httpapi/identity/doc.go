// Package identity authenticates the sender of a request, and decides about impersonation.
//
// [Authentication] asks its authenticator. It reuses the response for a second, for requests on the same connection
// with the same credentials. It stores no secret, but a digest of it, keyed for this process, in the connection's own
// slot. A request whose credentials are not accepted is never treated as one without credentials. [Headers] are the
// header fields that hold credentials. No code after authentication may see them. [Impersonation] lets a user
// impersonate another if the authorizer allows it.
//
// Nothing here answers a request, except that upstream's impersonation filter writes its refusals.
//
// Everything may be used from any goroutine and has no lock of its own. The package starts no
// goroutine.
package identity
