// Package pki makes the certificates and keys that the configuration does not name: a CA, the
// certificates that it signs, the key of service-account tokens, and the administrator's kubeconfig.
//
// Files are written atomically, and only their owner can read keys. Existing files are kept. Only a serving
// certificate of this CA is replaced, at a start and by [KeepRenewed], when it expires within 30 days or
// lacks a host. The package keeps no other state, starts no goroutine and takes no lock: its caller has
// locked the directory.
package pki
