// Package server assembles and runs a Larder process: store, registry, authentication, admission,
// HTTP server and bootstrap. Parts that use others start after them and end before them.
//
// # Life
//
// [New] checks its [Config] and does no I/O. [Server.Run] starts in these steps:
//
//  1. It locks the data directory, and creates missing certificates, keys and kubeconfig.
//  2. It opens the store, and listens once all flags have been checked.
//  3. It loads the caches.
//  4. It serves, and the bootstrap writes the system namespaces, the kubernetes service and its
//     endpoints, and the RBAC roles.
//
// Then /readyz succeeds. A resource may fail to load, for example because a KMS plugin hangs. It
// delays readiness by at most --storage-initialization-timeout, and is served once it is loaded. With
// Config.TestControllers, pods are admitted by then. Config.Beside starts after that, and ends first.
//
// Clients that connect before requests can be served wait for at most eight seconds, while loading
// makes progress. The clients of a large cluster reconnect all at once, and their requests would
// slow the start.
//
// When Run's context ends, /readyz fails, and the server continues for the shutdown delay. Then requests in
// flight finish, watches end, and the store closes. Run also ends when another process has taken over
// (Config.Upgrade). Run returns when everything that it started has ended.
//
// Storages, authorizers and the bootstrap call the server's own API in memory, as the user
// system:apiserver of the group system:masters (package loopback).
//
// # Files
//
// All files are in Config.DataDir or, with Config.Scratch, in a temporary directory:
//
//	lock                  held while a process uses the directory
//	etcd/                 the embedded store
//	pki/ca.{crt,key}      the CA of the files below
//	pki/apiserver.{crt,key}
//	pki/sa.key            signs service-account tokens
//	admin.kubeconfig      a client certificate of system:masters
//
// A file is not created if Config names another one instead. With neither DataDir nor Scratch, only a serving
// certificate is created, in the certificate directory of Config.SecureServing.
package server
