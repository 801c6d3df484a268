// Package starts measures how servers start on stored objects of several kinds: pods that are
// nearly equal and pods that are not, objects stored before a field had its default, objects
// stored in an older version, and custom resources.
//
// [Run] starts an etcd for each kind of data and writes the objects as kube-apiserver would have stored them. No
// measured server has read them before. Run compacts etcd, so that servers replay nothing, and starts the servers in
// turn. For each start it records the usage of the server and etcd twice: until /readyz returns 200, and until the
// client has received the first list of all objects. A server may load a resource only at its first request.
//
// All goroutines end before Run returns.
package starts
