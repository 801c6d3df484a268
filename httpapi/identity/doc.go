// Package identity authenticates the sender of a request, and decides about impersonation.
//
// [Authentication] asks its authenticator. It reuses the response for a second, for requests on the same connection
// with the same credentials. It stores no secret: the connection keeps a digest, under a key of this process. A
// request whose credentials are not accepted is never treated as one without credentials. [Headers] are the header
// fields that hold credentials. Code after authentication must not see them. [Impersonation] lets a user impersonate
// another if the authorizer allows it. Only upstream's impersonation filter writes responses, to refuse requests.
//
// Exported methods are safe for concurrent use. The only lock is a leaf, and there are no goroutines.
package identity
