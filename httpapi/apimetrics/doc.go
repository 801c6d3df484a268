// Package apimetrics counts what the server does, under the names of kube-apiserver's metrics where
// these exist, and serves /metrics.
//
// Upstream's metrics belong to the process. A [Monitor] counts reads, [Monitors] counts writes, and
// [Access] counts authentications, authorizations and the filters between them. They report only
// unusual requests to upstream's metrics. For each request for /metrics, a [Page] adds their counts
// to upstream's, by names and labels. Collectors then read what caches hold.
//
// Counting takes no lock and allocates nothing.
package apimetrics
