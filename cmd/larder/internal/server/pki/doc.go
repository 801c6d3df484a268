// Package pki generates the certificates and keys that the configuration does not name: a CA, the
// certificates that it signs, the key of service account tokens, and the administrator's kubeconfig.
//
// Files are written atomically, and only their owner can read keys. A start and [KeepRenewed] replace two kinds of
// existing files: a serving certificate of this CA that expires within 30 days or lacks a host, and a kubeconfig whose
// certificate expires then or whose other contents have changed. The package keeps no other state, starts no goroutine
// and takes no lock, because its caller has locked the directory.
package pki
