// Command follow lists the keys of an etcd below a prefix, then prints changes:
//
//	go run ./follow http://127.0.0.1:2379 /registry/
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/watch"
	"github.com/larder-io/larder/watch/mirror"
	"golang.org/x/sync/errgroup"
)

func main() {
	store, err := kv.NewExternal(kv.ExternalConfig{Endpoints: os.Args[1:2]})
	if err != nil {
		log.Fatal(err)
	}
	m, err := mirror.New(mirror.Config{Store: store, Prefix: os.Args[2]})
	if err != nil {
		log.Fatal(err)
	}
	group, ctx := errgroup.WithContext(context.Background())
	group.Go(func() error { return store.Run(ctx) })
	group.Go(func() error { return m.Run(ctx) })
	group.Go(func() error { return follow(ctx, m, os.Stdout) })
	log.Fatal(group.Wait())
}

func follow(ctx context.Context, m *mirror.Mirror, out io.Writer) error {
	for { // list again when a watch ends
		page, revision, err := m.List(ctx, cache.Query{})
		if err != nil {
			return err
		}
		for _, o := range page.Objects {
			fmt.Fprintf(out, "%s: %s\n", o.Key(), o.Body())
		}
		w, err := m.Watch(watch.Options{After: revision})
		if err != nil {
			continue // the list's revision is too old
		}
		for err == nil {
			var changes []watch.Delivery
			changes, err = w.Next(ctx, nil)
			for _, c := range changes {
				fmt.Fprintf(out, "%s %s: %s\n", c.Type, c.Object.Key(), c.Object.Body())
			}
		}
		w.Close()
	}
}
