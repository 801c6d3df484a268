package e2e_test

import (
	"flag"
	"regexp"
)

var rewriteMetrics = flag.Bool("rewrite-metrics", false, "record the metrics and log lines of -stock")

// knownDifference is a difference between the metrics and log lines of Larder and kube-apiserver: its names, its
// aspects, and the reason.
type knownDifference struct {
	name    *regexp.Regexp
	aspects string // of missing, added, type, help, labels, bounds, values, counts, line
	random  bool   // it may also not differ
	reason  string
}

// knownDifferences are all known differences. docs/monitoring/metrics.md describes them for users.
var knownDifferences = []knownDifference{
	{
		regexp.MustCompile(`^apiextensions_openapi_v[23]_regeneration_count$`), "missing", false,
		"no controller regenerates OpenAPI documents: they are made when a client asks",
	},
	{
		regexp.MustCompile(`^apiserver_flowcontrol_(dispatch_r|latest_s|next_(discounted_)?s_bounds)$`), "missing", false,
		"the virtual time of upstream's queues, which requests enter only when there are no seats",
	},
	{
		regexp.MustCompile(`^apiserver_request_post_timeout_total$`), "missing values", false,
		"a read that waits for a revision leaves no handler behind when its time is over",
	},
	{
		regexp.MustCompile(`^grpc_client_`), "missing", false,
		"calls to etcd are counted by etcd_requests_total; there are none of gRPC to an embedded one",
	},
	{
		regexp.MustCompile(`^apiserver_(storage_consistency_checks|terminated_watchers)_total$`), "added", false,
		"told from the start, not from the first event",
	},
	{
		regexp.MustCompile(`^watch_cache_capacity_increase_total$`), "added", true,
		"the room of a cache grows from 64 events on, and not from 100",
	},
	{
		regexp.MustCompile(`^apiserver_storage_transformation_(operations_total|duration_seconds)$`), "values", true,
		"a value is transformed once, when it arrives; that it is read for a write, too, is a matter of time",
	},
	{
		regexp.MustCompile(`^etcd_request(s_total|_duration_seconds)$`), "values", false,
		"caches are filled by lists without a count, and compared with etcd by lists of keys",
	},
	{
		regexp.MustCompile(`^registered_metrics_total$`), "values", false,
		"kube-apiserver does not register the metrics that it hides, Larder does and leaves them out",
	},
	{
		regexp.MustCompile(`^version_info$`), "values", false,
		"the patch version of a library is not known to it",
	},
	{
		regexp.MustCompile(`^workqueue_`), "values", false,
		"three controllers are not needed: those of the documents of custom resources",
	},
	{
		regexp.MustCompile(`^LIST /api/v1/namespaces/metered/events\?resourceVersion=9999999&timeout=1s 504$`), "line", false,
		"a line about 504 has no stack",
	},
}
