// Package integration runs Kubernetes' own integration tests (k8s.io/kubernetes/test/integration)
// against a program that is started as kube-apiserver. It has only a test. The test builds the integration tests with
// an overlay, so that they start that program instead of a server in their own process. It compares the
// failures with testdata/failures.txt.
//
// Nothing is copied from Kubernetes: the overlay is generated from the module k8s.io/kubernetes that
// go.mod names. Kubernetes' test packages get import paths below this package's, because an overlay cannot
// replace files of the module cache. They import the same packages as the rest of this module, which
// are built once.
package integration
