// Package difftest holds Larder against a stock kube-apiserver. It has no code but
// tests.
//
// A server is started as `larder serve` starts it and filled with objects; its
// history is compacted, so that "too old" means the same to everybody. Then
//
//	go test ./cmd/larder/internal/difftest -stock PATH
//
// starts the kube-apiserver at PATH (see bench/buildapiserver) on the same etcd and asks both
// the same: status, the headers that clients read, and bodies must be equal, byte for
// byte when the request reads. Both read one store that others write to (leases,
// mostly), so what differs is asked again before it counts. Requests that write are
// refused, dry, or to names of their own, and are compared without what each write
// makes anew: uids, times and revisions.
//
// With -protocol h2 they are asked over HTTP/2.
//
// Without -stock the answers to a fixed part of the requests are compared with
// testdata/stock.golden.gz, over both versions of HTTP, which -stock PATH -rewrite records.
//
// What differs on purpose or for now is listed in differences_test.go, each with its
// reason; the test fails when a listed difference no longer occurs. docs/differences.md
// tells users.
package difftest
