// Package apimetrics counts the server's work, under kube-apiserver's metric names if they
// exist, and serves /metrics.
//
// Upstream's metrics belong to the process, and count writes, failed reads, and reads that waited for flow
// control. A [Monitor] counts the other reads, and [Access] counts authentications, authorizations and the filters
// between them. For each request for /metrics, a [MetricsPage] adds their counts
// to upstream's, by names and labels. Collectors then read the contents of caches.
//
// Counting takes no lock and allocates nothing.
package apimetrics
