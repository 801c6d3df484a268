package e2e_test

import (
	"flag"
	"regexp"
)

var rewriteMetrics = flag.Bool("rewrite-metrics", false, "record the metrics and log lines of -stock")

// knownDifference is a difference between metrics and log lines of Larder and kube-apiserver: its names, aspects, and
// the reason.
type knownDifference struct {
	name    *regexp.Regexp
	aspects string // some of missing, added, type, help, labels, bounds, values, counts, line
	random  bool   // it need not occur
	reason  string
}

// knownDifferences has all known differences. docs/monitoring/metrics.md describes them for users.
var knownDifferences = []knownDifference{
	{
		regexp.MustCompile(`^apiextensions_openapi_v[23]_regeneration_count$`), "missing", false,
		"OpenAPI documents are built for the first request, not by a controller",
	},
	{
		regexp.MustCompile(`^apiserver_flowcontrol_(dispatch_r|latest_s|next_(discounted_)?s_bounds)$`), "missing", false,
		"the virtual time of upstream's queues, which a request enters only if no seat is free",
	},
	{
		regexp.MustCompile(`^apiserver_request_post_timeout_total$`), "missing values", false,
		"no handler of a read that waits for a revision outlives its deadline",
	},
	{
		regexp.MustCompile(`^grpc_client_`), "missing", false,
		"an embedded etcd has no gRPC calls; etcd_requests_total counts calls to etcd",
	},
	{
		regexp.MustCompile(`^apiserver_(storage_consistency_checks|terminated_watchers)_total$`), "added", false,
		"present from the start, not from the first event",
	},
	{
		regexp.MustCompile(`^watch_cache_capacity_increase_total$`), "added", true,
		"the initial capacity is 64 events instead of 100",
	},
	{
		regexp.MustCompile(`^apiserver_storage_transformation_(operations_total|duration_seconds)$`), "values", true,
		"a value is transformed once, when it arrives; writes may also transform it",
	},
	{
		regexp.MustCompile(`^etcd_request(s_total|_duration_seconds)$`), "values", false,
		"caches are filled with lists without a count, and compared with etcd with lists of keys",
	},
	{
		regexp.MustCompile(`^registered_metrics_total$`), "values", false,
		"Larder registers hidden metrics, and does not report them; kube-apiserver does not register them",
	},
	{
		regexp.MustCompile(`^version_info$`), "values", false,
		"imported as a library, Kubernetes does not know its patch version",
	},
	{
		regexp.MustCompile(`^workqueue_`), "values", false,
		"three controllers of OpenAPI and discovery documents are not needed",
	},
	{
		regexp.MustCompile(`^LIST /api/v1/namespaces/metered/events\?resourceVersion=9999999&timeout=1s 504$`), "line", false,
		"the log line of a 504 has no stack",
	},
}
