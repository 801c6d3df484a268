// Package integration runs Kubernetes' own integration tests (k8s.io/kubernetes/test/integration)
// against a program that is started as kube-apiserver. It has no code of its own: its test
// builds them, with an overlay that has them start that program instead of a server in their own
// process, and compares which of them fail with testdata/failures.txt.
//
// Nothing is copied from Kubernetes: the overlay is made from the module k8s.io/kubernetes that
// go.mod names. Its packages of tests get import paths below this package's, because files of
// the module cache cannot be replaced; all that they import is what the rest of this module
// imports, built once.
package integration
