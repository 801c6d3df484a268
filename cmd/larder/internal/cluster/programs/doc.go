// Package programs builds kube-controller-manager, kube-scheduler and kwok with the go command,
// from the module versions in programs.mod.
//
// The programs are kept in a directory that is named after a hash of these versions, and appear
// there whole or not at all, even when several processes build them at once. Directories of other
// versions are not removed. The package keeps no other state, starts no goroutine and takes no
// lock.
package programs
