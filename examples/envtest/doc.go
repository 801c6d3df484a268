// Package boxes is a small controller with a test suite on controller-runtime's envtest. The
// control plane of the suite is Larder.
//
// envtest needs a directory with the programs etcd, kube-apiserver and kubectl. The suite builds
// Larder once and links it there under the first two names (assets_test.go). Between tests the suite
// resets the server to a clean state (checkpoint_test.go) instead of restarting it. It also tests the
// controller with a lost response and a stale cache (faults_test.go).
//
//	go test ./...
package boxes
