// Package pki makes the certificates and keys that an owner did not give: an authority,
// what it signs, the key of service accounts' tokens, and the administrator's kubeconfig.
//
// Files appear whole or not at all, keys for their owner alone, and what is there is kept:
// only a serving certificate that this authority signed is made anew, when it is near its
// end or names other hosts: at a start, and while a process runs if its owner calls
// [KeepRenewed]. The package keeps no state beside the files, starts no goroutine and takes no
// lock: the directory is the caller's, who has it alone.
package pki
