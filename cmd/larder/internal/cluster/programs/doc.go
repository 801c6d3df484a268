// Package programs builds kube-controller-manager, kube-scheduler and kwok with the go command,
// from the module versions in programs.mod.
//
// The programs are kept in a directory whose name is a hash of these versions. Each file appears
// atomically, so several processes may build the programs at once. Directories of other versions are not
// removed. The package keeps no other state, starts no goroutine and takes no lock.
package programs
