// Package pki makes the certificates and keys that the configuration does not name: a CA, the
// certificates that it signs, the key of service-account tokens, and the administrator's kubeconfig.
//
// Files appear whole or not at all, and only their owner may read keys. Existing files are kept.
// Only a serving certificate of this CA is replaced, when it expires within 30 days or lacks a
// host: at a start, and by [KeepRenewed]. The package keeps no other state, starts no goroutine and
// takes no lock: its caller holds the directory.
package pki
