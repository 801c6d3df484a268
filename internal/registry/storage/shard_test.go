package storage

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/sharding"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"github.com/larder-io/larder/watch"
)

// TestShardsMatchUpstream checks that shards have the objects that upstream's selector matches, in lists and initial
// events, from the cache and from the store. Pages and their remaining counts must equal upstream's (apiserver
// pkg/storage/continue.go).
func TestShardsMatchUpstream(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.ShardedListAndWatch, true)
	for name, uncached := range map[string]bool{"cached": false, "from the store": true} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, runtime.ContentTypeProtobuf, func(c *fixtureConfig) { c.uncached = uncached })
			const pods = 60
			for i := range pods {
				pod := examplePod(fmt.Sprintf("ns%d", i%5), fmt.Sprintf("pod%02d", i))
				pod.UID = types.UID(fmt.Sprintf("%x", rand.Uint64()))
				f.create(pod)
			}
			for _, text := range []string{
				"shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')",
				"shardRange(object.metadata.uid, '0x8000000000000000', '0x10000000000000000')",
				"shardRange(object.metadata.uid, '0x00000000000000ff', '0x1234567890abcdef') || shardRange(object.metadata.uid, '0x4000000000000000', '0xfedcba0987654321')",
				"shardRange(object.metadata.namespace, '0x0000000000000000', '0xb000000000000000')",
				"shardRange(object.metadata.uid, '0x0000000000000000', '0x10000000000000000')",
			} {
				f.checkShard(t, text, uncached)
			}
		})
	}
}

// TestShardsNeedTheirFeature checks that a selector is read, and a wrong one refused, only if the feature is on.
func TestShardsNeedTheirFeature(t *testing.T) {
	const good, bad = "shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')", "shardRange("
	for _, on := range []bool{true, false} {
		featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.ShardedListAndWatch, on)
		if selector, err := ParseShard(good); (selector != nil) != on || err != nil {
			t.Errorf("feature %t: got selector %v and error %v", on, selector, err)
		}
		if _, err := ParseShard(bad); (err != nil) != on {
			t.Errorf("feature %t: got error %v for a malformed selector", on, err)
		}
	}
}

func (f *fixture) checkShard(t *testing.T, text string, uncached bool) {
	t.Helper()
	selector, err := ParseShard(text)
	if err != nil {
		t.Fatal(err)
	}
	predicate := storage.SelectionPredicate{Label: labels.Everything(), Field: fields.Everything(), GetAttrs: examplePodAttrs}
	whole, found := &example.PodList{}, &example.PodList{}
	if err := (retryingStorage{f}).GetList(t.Context(), "/pods/", storage.ListOptions{Predicate: predicate, Recursive: true}, whole); err != nil {
		t.Fatal(err)
	}
	predicate.ShardSelector = selector
	if err := f.GetList(t.Context(), "/pods/", storage.ListOptions{Predicate: predicate, Recursive: true}, found); err != nil {
		t.Fatal(err)
	}
	want := slices.DeleteFunc(slices.Clone(whole.Items), func(p example.Pod) bool {
		in, err := selector.Matches(&p)
		return !in || err != nil
	})
	names := func(pods []example.Pod) string {
		var all []string
		for _, p := range pods {
			all = append(all, p.Namespace+"/"+p.Name)
		}
		return strings.Join(all, " ")
	}
	if got := names(found.Items); got != names(want) || found.ShardInfo == nil || found.ShardInfo.Selector != text {
		t.Errorf("%s: got %v with shardInfo %v, want %s", text, got, found.ShardInfo, names(want))
	}
	for _, pod := range want[:min(3, len(want))] {
		one := ListRequest{Scope: Scope{Namespace: pod.Namespace, Name: pod.Name}, Shard: selector}
		if listing, err := f.list(one); err != nil || len(listing.Objects) != 1 || listing.Meta.Shard != text {
			t.Errorf("list of %s: got %+v and error %v, want it", pod.Name, listing, err)
		}
	}
	f.checkShardPages(t, selector, names(want), len(whole.Items))
	if uncached {
		return
	}
	yes := true
	w, err := f.resource.Watch(t.Context(), WatchRequest{Shard: selector, SendInitialEvents: &yes, Bookmarks: true})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	var initial []string
	for ended := false; !ended; {
		deliveries, err := w.Next(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range deliveries {
			if ended = d.Type == watch.InitialEnd; !ended {
				initial = append(initial, d.Object.Key())
			}
		}
	}
	if got := strings.Join(initial, " "); got != names(want) {
		t.Errorf("%s: got initial events %s, want %s", text, got, names(want))
	}
}

// checkShardPages reads a shard in pages. total counts the objects of all shards.
func (f *fixture) checkShardPages(t *testing.T, selector sharding.Selector, want string, total int) {
	t.Helper()
	var all []string
	for request := (ListRequest{Shard: selector, Limit: 7}); ; {
		listing, err := f.list(request)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range listing.Objects {
			all = append(all, o.Key())
		}
		if listing.Meta.Continue == "" {
			if listing.Meta.Remaining != nil {
				t.Errorf("got remaining count %d on the last page, want none", *listing.Meta.Remaining)
			}
			break
		}
		// If a page takes several reads of the store, upstream counts from the last one on.
		most := int64(total) - request.Limit
		switch left := listing.Meta.Remaining; {
		case left == nil:
			t.Errorf("got no remaining count before the last page, of %d objects", total)
		case request.Continue == "" && *left != most && f.resource.Cache != nil, *left > most:
			t.Errorf("got remaining count %d, want %d or, on later pages, at most that", *left, most)
		}
		request.Continue = listing.Meta.Continue
	}
	if got := strings.Join(all, " "); got != want {
		t.Errorf("got %s in pages, want %s", got, want)
	}
}
