// Package datadir opens and locks the directory of a server's files. One process at a time holds the
// lock, until it ends. [Scratch] creates a temporary directory. It is removed when the process ends,
// or at the next start if the process was killed.
//
// A server trusts the CA, the keys and the objects in the directory. [Open] therefore rejects the
// directory if a user other than root and the server's own could have put files there, or can read
// its keys. It checks owners and permissions of the directory, its parents and its contents.
//
// A Dir is not safe for concurrent use. The package starts no goroutine.
package datadir
