// Package datadir holds the directory in which a server keeps its files: for its owner
// alone, locked as long as the process lives, and by one process at a time. A server that
// is to keep nothing gets a temporary one, which goes with it, or with the next server's
// start if the process was killed.
//
// A Dir belongs to one goroutine. The package starts none.
package datadir
