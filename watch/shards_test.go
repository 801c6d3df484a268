package watch_test

import (
	"fmt"
	"testing"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/watch"
)

// shards opens a watch of each of n equal shards.
func (f *fixture) shards(t *testing.T, n uint64) []*watch.Watcher {
	watchers := make([]*watch.Watcher, n)
	span := ^uint64(0)/n + 1
	for i := range n {
		shard := cache.NewShard(cache.ByIdentity, cache.HashRange{First: i * span, Last: (i+1)*span - 1})
		watchers[i] = f.must(t, watch.Options{Shard: shard, After: f.last})
	}
	return watchers
}

// TestEventsReachOnlyTheirShards checks that an event is delivered to one of many shards, and that the Hub examines few
// of their groups. Stats count the objects that were not delivered to the others.
func TestEventsReachOnlyTheirShards(t *testing.T) {
	f := newFixture(t, config{events: 1000})
	f.reset()
	const shards, creates = 1024, 100
	f.apply(change{key: "a/first"})
	late := f.must(t, watch.Options{Shard: cache.NewShard(cache.ByNamespace), After: f.last - 1}) // an empty shard
	watchers := f.shards(t, shards)
	f.shards(t, 2) // larger shards, whose watchers are never read
	before, from := f.hub.Stats(), f.cache.Log().Next()
	for i := range creates {
		f.apply(change{key: fmt.Sprintf("a/%d", i)})
	}
	for i := range creates { // each write changes the identity, and so moves the object to another shard
		f.apply(change{key: fmt.Sprintf("a/%d", i)})
	}
	f.publishAll()
	events, _, err := f.cache.Log().Read(from, make([]*cache.Event, 0, 2*creates))
	if err != nil || len(events) != 2*creates {
		t.Fatalf("got %d events and error %v, want %d events", len(events), err, 2*creates)
	}
	examined := 0
	for _, e := range events {
		examined += f.hub.Examined(e)
	}
	added, deleted := 0, 0
	for _, watcher := range append(watchers, late) {
		ds, err := watcher.Poll(nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range ds {
			switch d.Type {
			case watch.Added:
				added++
			case watch.Deleted:
				deleted++
			}
		}
	}
	// If the new identity is in the same shard, the event is Modified.
	if added+deleted < 3*creates-20 || added > 2*creates {
		t.Errorf("got %d added and %d deleted, want about %d and %d", added, deleted, 2*creates, creates)
	}
	if most := 2 * creates * 30; examined > most {
		t.Errorf("%d groups examined for %d events, want at most %d", examined, 2*creates, most)
	}
	stats := f.hub.Stats()
	// Each object is outside all shards except one of each division. The last event's is also outside the empty shard,
	// whose watcher was opened later.
	if got, want := stats.OutsideShard-before.OutsideShard, uint64(3*creates*(shards-1+1+1)+1); got != want {
		t.Errorf("%d objects outside the shards, want %d", got, want)
	}
	if stats.Sharded != shards+3 {
		t.Errorf("%d sharded watchers, want %d", stats.Sharded, shards+3)
	}
	for _, watcher := range watchers {
		watcher.Close()
	}
	if got := f.hub.Stats(); got.Sharded != 3 || got.Groups != 3 {
		t.Errorf("3 watchers are left, but Stats are %+v", got)
	}
}
