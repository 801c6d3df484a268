// Package programs builds the programs that a cluster has beside its API server:
// kube-controller-manager and kube-scheduler of the release of Kubernetes that Larder is
// built of, and kwok, which plays the kubelets of nodes that do not exist.
//
// They are published Go modules, in the versions that programs.mod names, and nothing in
// them is changed. The go command builds them once; then they lie in a directory named
// after all that they are made of, which belongs to the package: programs appear there
// whole or not at all, also where several processes build them at once. With new versions
// comes a new directory, and nobody removes the old one.
//
// The package keeps no state beside these files, starts no goroutine and takes no lock.
package programs
