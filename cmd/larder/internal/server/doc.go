// Package server assembles a Larder process: store, registry, authentication, admission,
// front door and bootstrap, started in that order and ended in the reverse one.
//
// # Life
//
// [New] checks its [Config] and does no I/O. [Server.Run] opens the data
// directory and its lock, makes the certificates, keys and kubeconfig that are
// missing, opens the store, listens once all flags have been checked, loads the caches, serves, and has the
// bootstrap write what every cluster has: the system namespaces, the kubernetes
// service and its endpoints, the RBAC roles. Only then does /readyz say 200. A
// resource that cannot be loaded, because a key management service hangs, is waited for
// no longer than a minute, and served once it is loaded. With Config.TestControllers
// pods are admitted by then. Config.Beside runs from then on, and ends first.
//
// Clients that connect before requests can be answered wait, for eight seconds at most, and no
// longer than loading gets on. Those of a large cluster come back all at once, and what they ask
// then would keep the server from getting ready.
//
// When its context ends Run turns /readyz red, serves on for the shutdown delay,
// lets requests in flight finish and watches end, and closes the store last, so
// that what was acknowledged is written. Run returns when all it started ended.
//
// # The process's own client
//
// Storages, authorizers and the bootstrap call the server's own API through a transport that
// calls the front door's handlers without a connection, as the user system:apiserver of the
// group system:masters.
//
// # Files
//
// All files are in Config.DataDir, or in a temporary directory in its place, which only its
// owner may enter:
//
//	lock                  held while a process uses the directory
//	etcd/                 the embedded store
//	pki/ca.{crt,key}      the authority of the files below
//	pki/apiserver.{crt,key}
//	pki/sa.key            signs service-account tokens
//	admin.kubeconfig      a client certificate of system:masters
//
// A file whose counterpart was given in Config is not made. With neither directory only
// a serving certificate is, in the certificate directory of Config.SecureServing.
package server
