package watch_test

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/watch"
)

// This example uses a hub without a store: the caller writes to the cache. A watcher gets the initial objects, and
// then the changes that its selector selects.
func Example() {
	schema := cache.NewResourceSchema("pods", nil)
	pod := func(key, app string, revision int64) *cache.Object {
		return cache.NewObject(cache.ObjectConfig{
			Key: key, Revision: revision, Body: []byte("..."), Labels: map[string]string{"app": app},
		}, schema)
	}
	var hub *watch.Hub
	c, err := cache.New(cache.Config{Schema: schema, OnAppend: func() { hub.Notify() }})
	if err != nil {
		fmt.Println(err)
		return
	}
	if hub, err = watch.New(watch.Config{Cache: c}); err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- hub.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	c.Reset([]*cache.Object{pod("default/a", "web", 7), pod("default/b", "db", 9)}, 10)

	snapshot := c.Snapshot()
	watcher, err := hub.Watch(watch.Options{
		Initial: &snapshot, Label: labels.SelectorFromSet(labels.Set{"app": "web"}), Bookmarks: true,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer watcher.Close()
	c.Apply(cache.Batch{Revision: 12, Changes: []cache.Change{{Key: "default/c", Object: pod("default/c", "web", 12)}}})
	c.Apply(cache.Batch{Revision: 13, Changes: []cache.Change{{Key: "default/a", Object: pod("default/a", "db", 13)}}})

	for received := 0; received < 4; {
		deliveries, err := watcher.Next(ctx, nil)
		if err != nil {
			fmt.Println(err)
			return
		}
		for _, d := range deliveries {
			received++
			if d.Object == nil {
				fmt.Println(d.Type, "at", d.Revision)
				continue
			}
			fmt.Println(d.Type, d.Object.Key(), "at", d.Revision)
		}
	}
	// Output:
	// ADDED default/a at 7
	// INITIAL-END at 10
	// ADDED default/c at 12
	// DELETED default/a at 13
}
