package difftest

import (
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// shard returns the parameter that selects objects by the first hexadecimal digit of the hash of a field. A range
// excludes its end, which may be 16.
func shard(field string, ranges ...[2]uint64) string {
	var all []string
	for _, r := range ranges {
		end := "0x10000000000000000"
		if r[1] < 16 {
			end = fmt.Sprintf("0x%x000000000000000", r[1])
		}
		all = append(all, fmt.Sprintf("shardRange(object.metadata.%s, '0x%x000000000000000', '%s')", field, r[0], end))
	}
	return "shardSelector=" + url.QueryEscape(strings.Join(all, " || "))
}

// badShards are selectors that the server rejects or canonicalizes.
var badShards = []string{
	"", " ", "x", "+", "1", "'x'", "shardRange()", "shardRange(object.metadata.uid,'0x0','0x1')", "shardRange(object.metadata.name,'0x0000000000000000','0x8000000000000000')",
	"shardRange(object.metadata.uid,'0x8000000000000000','0x0000000000000000')", "shardRange(object.metadata.uid,'0x0000000000000000','0x0000000000000000')", "shardRange(object.metadata.uid,'0x0000000000000000','0x20000000000000000')",
	"shardRange(object.metadata.uid,0,1)", "!shardRange(a,b,c)", "shardRange(", "shardRange(object.metadata.uid,'0x000000000000000G','0x8000000000000000')", "shardRange(object.metadata.uid,'0x000000000000000A','0x8000000000000000')",
	"shardRange(object.metadata.uid,'0x0000000000000000','0x8000000000000000')||shardRange(object.metadata.namespace,'0x0000000000000000','0x8000000000000000')", "shardRange(metadata.uid,'0x0000000000000000','0x8000000000000000')",
	"shardRange(object.metadata.uid,'0x0000000000000000','0x8000000000000000')&&shardRange(object.metadata.uid,'0x0000000000000000','0x8000000000000000')", "shardRange(object[0],'0x0000000000000000','0x8000000000000000')",
	"  shardRange( object.metadata.namespace ,\"0x0000000000000000\",'0x10000000000000000')  ", "(shardRange(object.metadata.namespace,'0x0000000000000000','0x10000000000000000'))",
}

var shardPaths = []string{
	"/api/v1/namespaces/diff/configmaps", "/api/v1/namespaces/diff/configmaps/a", "/api/v1/namespaces/diff/pods", "/api/v1/namespaces/diff/events", "/apis/events.k8s.io/v1/namespaces/diff/events", "/api/v1/nodes", "/api/v1/componentstatuses/nosuch",
	"/apis/apps/v1/namespaces/diff/deployments", "/apis/autoscaling/v1/namespaces/diff/horizontalpodautoscalers", widgets, oldWidgets, gadgets, "/apis/apiregistration.k8s.io/v1/apiservices?labelSelector=nosuch", remote + "/things",
}

// steadyShards are reads of shards whose responses do not depend on UIDs.
func steadyShards() []request {
	var all []request
	queries := []string{shard("uid", [2]uint64{0, 16}), shard("uid", [2]uint64{8, 16}, [2]uint64{0, 8}), shard("namespace", [2]uint64{0, 16}) + "&limit=1", shard("uid", [2]uint64{0, 16}) + "&labelSelector=x%3D1", shard("uid", [2]uint64{0, 16}) + "&resourceVersion=x"}
	for digit := range uint64(16) {
		queries = append(queries, shard("namespace", [2]uint64{digit, digit + 1}))
	}
	for _, path := range shardPaths {
		for _, query := range queries {
			for _, accept := range []string{js, yaml, table, partials} {
				all = append(all, get(with(path, query), accept))
			}
		}
		for _, bad := range badShards {
			bad = "shardSelector=" + url.QueryEscape(bad)
			all = append(all, get(with(path, bad), js), get(with(path, bad+"&limit=x"), js), get(with(path, "resourceVersion=x&"+bad), js))
		}
	}
	return all
}

// movingShards are reads of shards by UID. UIDs differ in each run.
func movingShards() []request {
	var all []request
	halves := []string{shard("uid", [2]uint64{0, 8}), shard("uid", [2]uint64{8, 16}), shard("uid", [2]uint64{3, 5}, [2]uint64{11, 14}), shard("namespace", [2]uint64{0, 8}), shard("namespace", [2]uint64{8, 16})}
	for _, scope := range append([]string{"/api/v1/configmaps", "/apis/diff.example.com/v1/widgets", "/apis/rbac.authorization.k8s.io/v1/clusterroles", "/api/v1/events", "/api/v1/namespaces", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"}, shardPaths...) {
		for _, half := range halves {
			for _, accept := range []string{js, pb, table, partials, pb + ";as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"} {
				all = append(all, get(with(scope, half), accept))
			}
			for _, more := range []string{"limit=2", "limit=2&resourceVersion=0", "resourceVersion=0", "resourceVersion={mid}", "resourceVersion={mid}&limit=3", "resourceVersion={mid}&resourceVersionMatch=Exact", "continue={token:-1}", "continue={token:{mid}}&limit=2", "labelSelector=x%3D1", "labelSelector=x%3D1&limit=1", "fieldSelector=metadata.name%3Da", "fieldSelector=metadata.name%3Db&resourceVersion={now}&resourceVersionMatch=Exact", "fieldSelector=metadata.namespace%3Ddiff"} {
				all = append(all, get(with(scope, half+"&"+more), js))
			}
			all = append(all, request{Method: http.MethodGet, Path: with(scope, half), Encoding: "gzip", Accept: js})
		}
	}
	return all
}

// shardWatches are watches of shards that begin in different ways.
func shardWatches() []request {
	var all []request
	for _, scope := range []string{"/api/v1/namespaces/diff/configmaps", "/api/v1/configmaps", widgets, "/api/v1/nodes", "/api/v1/watch/namespaces/diff/configmaps", "/api/v1/namespaces/diff/events"} {
		for _, half := range []string{shard("uid", [2]uint64{0, 8}), shard("uid", [2]uint64{8, 16}), shard("namespace", [2]uint64{0, 8}), "shardSelector=x"} {
			for _, begin := range []string{"", "resourceVersion=0", "resourceVersion={then}", "resourceVersion={mid}", "resourceVersion={now}", "sendInitialEvents=true&resourceVersionMatch=NotOlderThan", "sendInitialEvents=false&resourceVersionMatch=NotOlderThan", "labelSelector=x%3D1", "fieldSelector=metadata.name%3Db"} {
				for _, accept := range []string{js, pb, table, partial} {
					all = append(all, get(scope+"?watch=1&allowWatchBookmarks=true&timeoutSeconds={life}&"+half+"&"+begin, accept))
				}
			}
		}
	}
	return all
}

// TestShardsMatchKubeAPIServer compares lists and watches of shards, with the feature gate on and off.
func TestShardsMatchKubeAPIServer(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a server for each state of a feature gate")
	}
	for name, gates := range map[string]string{"on": "ShardedListAndWatch=true", "off": "ShardedListAndWatch=false"} {
		t.Run(name, func(t *testing.T) {
			golden := filepath.Join("testdata", "shards-"+name+".golden.gz")
			f := newFixture(t, gates)
			if f.stock == nil {
				f.replay(t, golden)
				return
			}
			f.useProtocol(t, *protocol)
			c := newComparison(t, f)
			c.compareAll("reads", slices.Concat(steadyShards(), movingShards()), workers, c.compareRead)
			if *rewrite {
				f.record(t, golden, steadyShards())
			}
			c.compareAll("watches", shardWatches(), watchers, c.compareRead)
			c.walkEncodings("/api/v1/namespaces/many/configmaps?" + shard("uid", [2]uint64{4, 12}))
			c.walkEncodings("/api/v1/configmaps?" + shard("uid", [2]uint64{4, 12}))
			c.walkEncodings("/apis/rbac.authorization.k8s.io/v1/clusterroles?" + shard("uid", [2]uint64{4, 12}))
			c.compareAll("deletions", []request{
				{Method: http.MethodDelete, Path: "/api/v1/namespaces/diff/configmaps?dryRun=All&" + shard("uid", [2]uint64{4, 12})},
				{Method: http.MethodDelete, Path: widgets + "?dryRun=All&" + shard("uid", [2]uint64{4, 12})},
				{Method: http.MethodDelete, Path: "/api/v1/namespaces/diff/configmaps?dryRun=All&shardSelector=x"},
			}, 1, c.compareWrite)
			c.compareLiveShards()
			t.Logf("%d comparisons, %d listed differences", c.compared, c.listed)
		})
	}
}

// compareLiveShards compares watches of all shards during changes. Watches of shards that lack the last change are
// compared at their timeout.
func (c *comparison) compareLiveShards() {
	c.t.Helper()
	version := revision(c.t, c.f.must(c.t, c.f.larder, get("/api/v1/namespaces/diff/configmaps", js)).body)
	var all []request
	for _, accept := range []string{js, pb, partial} {
		for digit := range uint64(4) {
			for _, selector := range []string{"", "&labelSelector=live%3Dyes", "&fieldSelector=metadata.name%3Dlive"} {
				all = append(all, get("/api/v1/namespaces/diff/configmaps?watch=1&timeoutSeconds=20&resourceVersion="+version+selector+"&"+shard("uid", [2]uint64{4 * digit, 4*digit + 4}), accept))
			}
		}
	}
	c.compareStreams(all, version)
}
