package difftest

import "regexp"

// differences are the known differences between Larder and kube-apiserver: the requests, the difference, and the
// reason. docs/differences.md describes them for users.
var differences = []struct {
	request, difference *regexp.Regexp
	random              bool // it may also not occur
	reason              string
}{
	{
		regexp.MustCompile(`^[A-Z]+ /apis/diff\.example\.com/v1/*( |$)`), regexp.MustCompile(`body: at`), true,
		"stock lists what definitions define in no order, Larder by name",
	},
	{
		regexp.MustCompile(`^(POST|PUT) /apis/diff\.example\.com/.* type="application/vnd\.kubernetes\.protobuf"`), regexp.MustCompile(`stock .*(EOF|INTERNAL_ERROR).*, larder <nil>`), false,
		"stock panics at protobuf, which custom resources have not, and cuts the connection; Larder answers 415",
	},
	{
		regexp.MustCompile(`^[A-Z]+ /( |$)`), regexp.MustCompile(`(?m)\A *body:.*\n.*/flagz`), false,
		"the index lists /flagz, and the Larder of these tests has no flags to tell",
	},
	{
		regexp.MustCompile(`^[A-Z]+ /openapi/v2( |$)`), regexp.MustCompile(`(?m)\A *body:`), true,
		"members of what tells of APIServices may come in another order",
	},
	{
		regexp.MustCompile(`^GET /version/*( |$)`), regexp.MustCompile(`gitVersion`), false,
		"each program tells its own build",
	},
	{
		regexp.MustCompile(`resourceVersion=1\b`), regexp.MustCompile(`too old resource version: 1 \(\d+\)`), false,
		"Larder remembers events from before its start, so the oldest revision that it names is older",
	},
	{
		regexp.MustCompile(`/events\?.*watch=1.*shardSelector=shardRange`), regexp.MustCompile(`\Abody: at`), true,
		"stock sends a watch of a shard of events all events, because its watches of etcd look only at labels and fields",
	},
	{
		regexp.MustCompile(`/events\?.*watch=1.*resourceVersion=99999999`), regexp.MustCompile(`retryAfterSeconds`), true,
		"stock draws the seconds after which to try again by lot",
	},
	{
		regexp.MustCompile(`watch=1.*resourceVersion=99999999`), regexp.MustCompile(`larder .*resource version 99999999 is not in the store's history`), false,
		"stock accepts a revision that etcd has not reached, and waits in silence",
	},
}
