// Package datadir holds the directory in which a server keeps its files: for its owner
// alone, locked as long as the process lives, and by one process at a time. A server that
// is to keep nothing gets a temporary one, which goes with it, or with the next server's
// start if the process was killed.
//
// A server trusts the CA, the keys and the objects that it finds there. So [Open] refuses a
// directory that another user than root owns or may write to, one on the way to it that lets
// others put another in its place, files in it of such users, and keys that others may read.
//
// A Dir belongs to one goroutine. The package starts none.
package datadir
