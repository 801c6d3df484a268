package difftest

import "regexp"

// differences are the known differences between Larder and kube-apiserver: the requests, the difference, and the
// reason. docs/differences.md describes them for users.
var differences = []struct {
	request, difference *regexp.Regexp
	random              bool // it need not occur
	reason              string
}{
	{
		regexp.MustCompile(`^[A-Z]+ /apis/diff\.example\.com/v1/*( |$)`), regexp.MustCompile(`body: at`), true,
		"kube-apiserver lists the resources of CRDs in random order, Larder sorted by name",
	},
	{
		regexp.MustCompile(`^(POST|PUT) /apis/diff\.example\.com/.* type="application/vnd\.kubernetes\.protobuf"`), regexp.MustCompile(`kube-apiserver .*(EOF|INTERNAL_ERROR).*, larder <nil>`), false,
		"kube-apiserver panics if asked for a custom resource in protobuf, and closes the connection; Larder responds with 415",
	},
	{
		regexp.MustCompile(`^[A-Z]+ /( |$)`), regexp.MustCompile(`(?m)\A *body:.*\n.*/flagz`), false,
		"the index lists /flagz; the Larder of these tests has no flags",
	},
	{
		regexp.MustCompile(`^[A-Z]+ /openapi/v2( |$)`), regexp.MustCompile(`(?m)\A *body:`), true,
		"descriptions of APIServices may have their members in another order",
	},
	{
		regexp.MustCompile(`^GET /version/*( |$)`), regexp.MustCompile(`gitVersion`), false,
		"each program describes its own build",
	},
	{
		regexp.MustCompile(`resourceVersion=1\b`), regexp.MustCompile(`too old resource version: 1 \(\d+\)`), false,
		"Larder has events from before its start, so its oldest revision is lower",
	},
	{
		regexp.MustCompile(`/events\?.*watch=1.*shardSelector=shardRange`), regexp.MustCompile(`\Abody: at`), true,
		"kube-apiserver sends all events to a watch of a shard of events, because its watches of etcd filter only by labels and fields",
	},
	{
		regexp.MustCompile(`/events\?.*watch=1.*resourceVersion=99999999`), regexp.MustCompile(`retryAfterSeconds`), true,
		"kube-apiserver chooses the seconds of Retry-After at random",
	},
	{
		regexp.MustCompile(`watch=1.*resourceVersion=99999999`), regexp.MustCompile(`larder .*resource version 99999999 is not in the store's history`), false,
		"kube-apiserver accepts a revision that etcd has not reached, and waits for it",
	},
}
