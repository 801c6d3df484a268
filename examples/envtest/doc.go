// Package boxes is a small controller, of which the tests are the point: a suite on
// controller-runtime's envtest whose control plane is Larder.
//
// envtest wants a directory with the programs etcd, kube-apiserver and kubectl. All that
// the suite does about it is to build Larder once and to link it there under the first two
// names (assets_test.go). After that a suite is as it always was, but that it can ask
// the server to go back to a clean state between its tests (checkpoint_test.go) instead of
// starting it again.
//
//	go test ./...
package boxes
