// Package difftest compares Larder with kube-apiserver. It has only tests.
//
//	go test ./cmd/larder/internal/difftest -stock PATH
//
// starts the kube-apiserver at PATH (bench/buildapiserver builds one) and Larder on one etcd with
// compacted history, and sends both the same requests. Status, the headers that clients read, and
// the bodies of reads must be equal, byte for byte. Because others write to the store, a difference
// is asked for again before it counts. Writes are refused, dry, or of names of their own, and are
// compared without uids, times and revisions. With -protocol h2 requests use HTTP/2.
//
// Without -stock, a fixed part of the requests is compared with testdata/stock.golden.gz, over both
// versions of HTTP. -stock PATH -rewrite records that file.
//
// differences_test.go lists the intended differences with their reasons, and docs/differences.md
// tells users. The test fails when a listed difference no longer occurs.
package difftest
