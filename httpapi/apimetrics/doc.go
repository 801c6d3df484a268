// Package apimetrics counts the server's work, under kube-apiserver's metric names if they
// exist, and serves /metrics.
//
// Upstream's metrics belong to the process. A [Monitor] counts reads, [Monitors] counts writes, and
// [Access] counts authentications, authorizations and the filters between them. They report only
// unusual requests to upstream's metrics. For each request for /metrics, a [Page] adds their counts
// to upstream's, by names and labels. Collectors then read the contents of caches.
//
// Counting takes no lock and allocates nothing.
package apimetrics
