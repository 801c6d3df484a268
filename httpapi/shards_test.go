package httpapi

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/sharding"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"github.com/larder-io/larder/internal/proctest"
)

// shard returns the parameter that selects the i-th of n shards, a power of two.
func shard(field string, i, n uint64) string {
	end := "0x10000000000000000"
	if i+1 < n {
		end = fmt.Sprintf("0x%016x", (i+1)*(1<<63/n*2))
	}
	return "shardSelector=" + url.QueryEscape(fmt.Sprintf("shardRange(object.metadata.%s, '0x%016x', '%s')", field, i*(1<<63/n*2), end))
}

// badShards are selectors that are refused.
var badShards = []string{
	"x", "+", "shardRange()", "shardRange(object.metadata.uid,'0x0','0x1')", "shardRange(object.metadata.name,'0x0000000000000000','0x8000000000000000')",
	"shardRange(object.metadata.uid,'0x8000000000000000','0x0000000000000000')", "shardRange(object.metadata.uid,'0x0000000000000000','0x0000000000000000')",
	"shardRange(object.metadata.uid,'0x0000000000000000','0x20000000000000000')", "shardRange(object.metadata.uid,0,1)", "!shardRange(a,b,c)", "shardRange(",
	"shardRange(object.metadata.uid,'0x0000000000000000','0x8000000000000000')||shardRange(object.metadata.namespace,'0x0000000000000000','0x8000000000000000')",
	"shardRange(object.metadata.uid,'0x000000000000000G','0x8000000000000000')",
}

// TestShardsMatchUpstream compares lists of shards, and the errors for bad selectors, with upstream's in each
// form. Without the feature gate, nothing is selected or refused.
func TestShardsMatchUpstream(t *testing.T) {
	const uids, namespaces = "uid", "namespace"
	for _, enabled := range []bool{false, true} {
		t.Run(fmt.Sprint(enabled), func(t *testing.T) {
			featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.ShardedListAndWatch, enabled)
			p := newPair(t)
			p.seed(t)
			queries := []string{
				shard(uids, 0, 1), shard(uids, 0, 2), shard(uids, 1, 2), shard(namespaces, 0, 2), shard(namespaces, 1, 2), "shardSelector=", shard(uids, 3, 4) + "+%7C%7C+" + shard(uids, 0, 4)[len("shardSelector="):],
				shard(uids, 0, 2) + "&labelSelector=odd%3Dtrue", shard(uids, 0, 2) + "&fieldSelector=metadata.name%3Dc1", shard(uids, 0, 1) + "&limit=2", shard(uids, 0, 2) + "&limit=1",
				shard(uids, 1, 2) + "&limit=1&resourceVersion=0", shard(uids, 0, 2) + "&resourceVersion=1&resourceVersionMatch=NotOlderThan", shard(uids, 0, 2) + "&resourceVersion=x", shard(uids, 0, 2) + "&" + shard(uids, 1, 2),
			}
			for _, bad := range badShards {
				queries = append(queries, "shardSelector="+url.QueryEscape(bad), "resourceVersion=x&shardSelector="+url.QueryEscape(bad), "limit=x&shardSelector="+url.QueryEscape(bad), "watch=1&shardSelector="+url.QueryEscape(bad))
			}
			drawn, every := 0, 4/proctest.Iterations(4) // all, or one in four with -short and under the race detector
			for _, path := range []string{"/api/v1/configmaps", "/api/v1/namespaces/a/configmaps", "/api/v1/pods", "/api/v1/nodes", "/api/v1/namespaces/a/configmaps/c1", "/apis/autoscaling/v1/horizontalpodautoscalers", "/apis/events.k8s.io/v1/events"} {
				for _, query := range queries {
					if !enabled && strings.HasPrefix(query, "watch") {
						continue // has no end
					}
					for _, accept := range []string{"", "application/yaml", "application/vnd.kubernetes.protobuf", "application/json;as=Table;v=v1;g=meta.k8s.io", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"} {
						if drawn++; drawn%every != 0 {
							continue
						}
						a := p.same(t, call{method: "GET", path: path + "?" + query, header: map[string]string{"Accept": accept}})
						if !enabled && strings.Contains(string(a.body), "shardInfo") {
							t.Errorf("%s: got shardInfo without the feature gate: %s", path, a.body)
						}
					}
				}
			}
		})
	}
}

// TestShardsAreWatched checks that each event reaches the watch of one shard. Metrics count the watches and the
// filtered events. A deletecollection with a shard selector deletes only that shard.
func TestShardsAreWatched(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.ShardedListAndWatch, true)
	p := newPair(t)
	p.ours.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"a"}}`))
	var want [2][]string
	half := make(map[string]int) // of each object
	create := func(name string) {
		var made struct{ Metadata struct{ UID string } }
		if err := json.Unmarshal(p.ours.must(t, post(configmaps, configmap(name, "", ""))).body, &made); err != nil {
			t.Fatal(err)
		}
		if sharding.HashField(made.Metadata.UID) >= "8" {
			half[name] = 1
		}
		want[half[name]] = append(want[half[name]], "ADDED "+name)
	}
	_, all := p.openWatch(t, configmaps+"?watch=1", "application/json")
	for i := range 8 {
		create(fmt.Sprintf("early%d", i))
		nextEvent(t, all) // otherwise the Hub could publish the object after the watches below have begun, and count it again
	}
	var watches [2]*bufio.Reader
	for i := range watches {
		want[i] = append(want[i], "BOOKMARK end")
		_, watches[i] = p.openWatch(t, configmaps+"?watch=1&allowWatchBookmarks=1&"+shard("uid", uint64(i), 2), "application/json")
	}
	p.eventually(t, "apiserver_watch_shards_total{"+ofConfigMaps+"}", 2)
	for i := range 8 {
		name := fmt.Sprintf("late%d", i)
		create(name)
		p.ours.must(t, put(configmaps+"/"+name, configmap(name, "", "new")))
		p.ours.must(t, del(configmaps+"/"+name))
		want[half[name]] = append(want[half[name]], "MODIFIED "+name, "DELETED "+name)
	}
	p.ours.must(t, del(configmaps+"?"+shard("uid", 0, 2)))
	deleted := 0
	for i := range 8 {
		name := fmt.Sprintf("early%d", i)
		if half[name] == 0 {
			deleted++
		}
	}
	last := 0
	for ; last < 8 || !strings.HasPrefix(want[0][len(want[0])-1], "ADDED last"); last++ { // the first watch gets its event after the deletions
		create(fmt.Sprintf("last%d", last))
	}
	for i, in := range watches {
		got := 0
		for _, w := range want[i] {
			e, raw := nextEvent(t, in)
			for strings.HasPrefix(e.String(), "DELETED early") { // in the order in which they are deleted
				got++
				e, raw = nextEvent(t, in)
			}
			if e.String() != w {
				t.Fatalf("shard %d: got %s, want %s\n%s", i, e, w, raw)
			}
		}
		if i == 0 && got != deleted || i == 1 && got != 0 {
			t.Errorf("got %d events of the deletecollection in shard %d, want %d in shard 0 and none in shard 1", got, i, deleted)
		}
	}
	// Each of two watches filtered the events of the other, once for each state: 8 objects at first, then 8 with
	// four states each, the deleted objects, and the last.
	p.eventually(t, "apiserver_watch_filtered_events_total{"+ofConfigMaps+"}", float64(8+8*4+deleted+last))
}
