package kv_test

import (
	"context"
	"fmt"
	"os"

	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/embedded"
	"github.com/larder-io/larder/kv/kvtest"
)

// This example writes, reads and watches an embedded store. With kv.NewExternal only the construction differs.
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
	running, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- store.Run(running) }()
	defer func() { stop(); <-ended }()
	ctx, cancel := context.WithCancel(running)
	defer cancel()

	before, err := store.Revision(ctx) // waits until the store is open
	if err != nil {
		fmt.Println(err)
		return
	}
	put := func(value string, over int64) kv.WriteResult {
		result, err := store.Put(ctx, "/registry/pods/default/a", []byte(value), kv.PutOptions{IfRevision: over})
		if err != nil {
			fmt.Println(err)
		}
		return result
	}
	created := put("one", 0)
	updated := put("two", created.Revision)
	late := put("three", created.Revision) // another client was faster
	fmt.Printf("created %v, updated %v, late %v: it is %q\n", created.Committed, updated.Committed, late.Committed, late.Current.Value)

	for response := range store.Watch(ctx, "/registry/pods/", before) {
		for _, batch := range response.Batches {
			for _, event := range batch.Events {
				fmt.Printf("%v %s: %s, %d after the start\n", event.Kind, event.Key, event.Value, event.Revision-before)
			}
		}
		if response.Progress >= updated.Revision {
			cancel() // ends the watch
		}
	}
	// Output:
	// created true, updated true, late false: it is "two"
	// create /registry/pods/default/a: one, 1 after the start
	// update /registry/pods/default/a: two, 2 after the start
}

// A Tail follows all keys under a prefix with one watch. A Subscription gets a part of them. Its owner first loads the
// objects and then applies the changes.
func ExampleTail() {
	store := kvtest.NewMemory()
	tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: "/registry"})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- tail.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	write := func(key, value string) {
		if _, err := store.Put(ctx, key, []byte(value), kv.PutOptions{}); err != nil {
			fmt.Println(err)
		}
	}

	write("/registry/pods/a", "one")
	pods := tail.Subscribe("/registry/pods/")
	if err := tail.Wait(ctx, 1); err != nil { // until the tail has its position
		fmt.Println(err)
		return
	}
	loaded, err := kv.RangeAll(ctx, store, kv.RangeOptions{Prefix: "/registry/pods/", Limit: kv.FittingPages}, func(page kv.Page) error {
		for _, item := range page.Items {
			fmt.Println("loaded", item.Key)
		}
		return nil
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	pods.Loaded(loaded)

	write("/registry/nodes/n", "elsewhere")
	write("/registry/pods/b", "two")
	batches, err := pods.Next(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, batch := range batches {
		for _, event := range batch.Events {
			fmt.Println(event.Kind, event.Key)
		}
	}
	pods.Applied(len(batches))

	revision, err := store.Revision(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("as fresh as the store:", pods.Wait(ctx, revision) == nil && pods.Fresh() >= revision)
	// Output:
	// loaded /registry/pods/a
	// create /registry/pods/b
	// as fresh as the store: true
}
