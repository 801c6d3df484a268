package cache_test

import (
	"fmt"

	"k8s.io/apimachinery/pkg/fields"

	"github.com/larder-io/larder/cache"
)

// This example uses a cache without a store: the caller writes to it.
func Example() {
	schema := cache.NewResourceSchema("pods", nil, cache.Index{Field: "spec.nodeName"})
	pod := func(key, node string, revision int64) *cache.Object {
		return cache.NewObject(cache.ObjectConfig{
			Key:      key,
			Revision: revision,
			Body:     []byte("..."),
			Fields:   fields.Set{"spec.nodeName": node},
		}, schema)
	}
	c, err := cache.New(cache.Config{Schema: schema})
	if err != nil {
		fmt.Println(err)
		return
	}
	c.Reset([]*cache.Object{pod("default/a", "n1", 7), pod("default/b", "n2", 9)}, 10)

	snapshot := c.Snapshot()
	page, err := snapshot.List(cache.Query{Field: fields.OneTermEqualSelector("spec.nodeName", "n1")}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, o := range page.Objects {
		fmt.Println("listed", o.Key(), "at", snapshot.Revision())
	}

	c.Apply(cache.Batch{Revision: 12, Changes: []cache.Change{{Key: "default/b", Object: pod("default/b", "n1", 12)}}})
	c.Apply(cache.Batch{Revision: 13, Changes: []cache.Change{{Key: "default/a"}}})

	events, _, err := c.Log().Read(snapshot.Position(), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, e := range events {
		fmt.Println("changed", e.Key(), "at", e.Revision, "deleted", e.Object == nil)
	}
	// Output:
	// listed default/a at 10
	// changed default/b at 12 deleted false
	// changed default/a at 13 deleted true
}
