package mirror_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/embedded"
	"github.com/larder-io/larder/watch"
	"github.com/larder-io/larder/watch/mirror"
)

// This example mirrors JSON values and finds them by a field. The store is a server in this process; an etcd
// cluster works as well.
func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	store, err := embedded.New(embedded.Config{Dir: dir, UnsafeNoFsync: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	schema := cache.NewResourceSchema("boxes", nil, cache.Index{Field: "color"})
	boxes, err := mirror.New(mirror.Config{Store: store, Prefix: "/boxes/", Schema: schema,
		Decode: func(_ context.Context, key string, value []byte, revision int64) *cache.Object {
			var box struct{ Color string }
			err := json.Unmarshal(value, &box)
			return cache.NewObject(cache.ObjectConfig{
				Key: key, Revision: revision, Body: value, Fields: fields.Set{"color": box.Color}, Err: err,
			}, schema)
		}})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	group, inner := errgroup.WithContext(ctx)
	group.Go(func() error { return store.Run(inner) })
	group.Go(func() error { return boxes.Run(inner) })
	defer func() { cancel(); group.Wait() }()
	put := func(key, value string) {
		if _, err := store.Put(ctx, "/boxes/"+key, []byte(value), kv.PutOptions{}); err != nil {
			fmt.Println(err)
		}
	}

	put("a", `{"color":"red"}`)
	put("b", `{"color":"blue"}`)
	red := fields.OneTermEqualSelector("color", "red")
	page, revision, err := boxes.List(ctx, cache.Query{Field: red}) // sees the preceding write
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, o := range page.Objects {
		fmt.Printf("listed %s: %s\n", o.Key(), o.Body())
	}

	watcher, err := boxes.Watch(watch.Options{After: revision, Field: red})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer watcher.Close()
	put("c", `{"color":"blue"}`)
	put("d", `{"color":"red"}`)
	deliveries, err := watcher.Next(ctx, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, d := range deliveries {
		fmt.Printf("%s %s: %s\n", d.Type, d.Object.Key(), d.Object.Body())
	}
	// Output:
	// listed a: {"color":"red"}
	// ADDED d: {"color":"red"}
}
