// Package difftest compares Larder with kube-apiserver. It has only tests.
//
//	go test ./cmd/larder/internal/difftest -stock PATH
//
// starts the kube-apiserver at PATH (bench/buildapiserver builds one) and Larder on one etcd with compacted history,
// and sends the same requests to both. Status, the headers that clients read, and the bodies of reads must be equal,
// byte for byte. Because the servers themselves write to the store, a request whose responses differ is repeated before
// the difference counts. Writes are rejected, dry runs, or use different names, and are compared without UIDs, times
// and revisions. With -protocol h2 requests use HTTP/2.
//
// Without -stock, a fixed part of the requests is compared with testdata/stock.golden.gz, over both
// versions of HTTP. -stock PATH -rewrite records that file.
//
// differences_test.go lists the intended differences with their reasons, and docs/differences.md describes
// them for users. The test fails when a listed difference no longer occurs.
package difftest
