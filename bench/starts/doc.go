// Package starts measures how servers start on stored objects of several kinds: those that share
// their shape and those that do not, those stored before a field had its default, in an older
// version, or of a custom resource.
//
// [Run] starts an etcd for each kind of data and writes the objects into it, as a kube-apiserver
// would have stored them, through etcd's own HTTP interface: no server that is measured has
// seen them before. Then etcd is compacted, so that nothing is replayed, and the servers are
// started in turns. Of each start it is recorded what the server's process and etcd's have used
// until /readyz answers 200, and until the first list of all objects has been received
// completely: some servers read a resource only when somebody asks for it.
//
// All goroutines end before Run returns. There are no locks.
package starts
