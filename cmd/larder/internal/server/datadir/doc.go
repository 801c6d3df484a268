// Package datadir holds the directory in which a server keeps its files. One process at a time
// holds it, until the process ends. [Scratch] makes a temporary one, which is removed with the
// process, or at the next start if the process was killed.
//
// A server trusts the CA, the keys and the objects in the directory. [Open] therefore refuses the
// directory if a user other than root and the server's own could have put files there, or can read
// its keys. It checks owners and permissions of the directory, its parents and its contents.
//
// A Dir belongs to one goroutine. The package starts none.
package datadir
