package cache

import (
	"hash/fnv"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// hashOf computes the hash with the standard library.
func hashOf(text string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(text))
	return h.Sum64()
}

// TestShardsSelectByTheWholeHash checks Matches at the ends of ranges, where the bits of the hash that an object stores
// do not suffice. It also compares Touches with Prefix.
func TestShardsSelectByTheWholeHash(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		schema, by := NewResourceSchema("things", nil), rapid.SampledFrom([]ShardKey{ByIdentity, ByNamespace}).Draw(t, "by")
		identified := rapid.Bool().Draw(t, "identified")
		if identified {
			schema.IdentifyBy(func(head []byte) []byte { return head[:min(3, len(head))] })
		}
		namespace, body := rapid.StringMatching(`[a-c]{1,2}`).Draw(t, "namespace"), rapid.StringN(1, 6, 20).Draw(t, "body")
		o := NewObject(ObjectConfig{Key: namespace + "/x", Revision: 1, Body: []byte(body)}, schema)
		hash := hashOf(namespace)
		switch {
		case by == ByIdentity && identified:
			hash = hashOf(body[:min(3, len(body))])
		case by == ByIdentity:
			hash = hashOf(o.Key())
		}
		bound := rapid.SampledFrom([]uint64{0, math.MaxUint64, hash, hash - 1, hash + 1, hash ^ 1<<20, hash >> 34 << 34, hash | (1<<34 - 1), 1 << 63, rapid.Uint64().Draw(t, "any")})
		var ranges, halves []HashRange
		want, touched := false, false
		for range rapid.IntRange(0, 4).Draw(t, "ranges") {
			a, b := bound.Draw(t, "a"), bound.Draw(t, "b")
			r := HashRange{min(a, b), max(a, b)}
			ranges = append(ranges, r)
			half := (r.Last - r.First) / 2
			halves = append(halves, HashRange{r.Last - half, r.Last}, HashRange{r.First, r.First + half})
			want = want || r.First <= hash && hash <= r.Last
			touched = touched || r.First>>56 <= hash>>56 && hash>>56 <= r.Last>>56
		}
		s := NewShard(by, ranges...)
		if s.Matches(o) != want {
			t.Fatalf("shard %s matches hash %x: %v, want %v", s, hash, !want, want)
		}
		if by.Prefix(o) != uint8(hash>>56) || s.Touches(by.Prefix(o)) != touched {
			t.Fatalf("shard %s, hash %x: prefix %x, touched: %v; want %x, %v", s, hash, by.Prefix(o), s.Touches(by.Prefix(o)), hash>>56, touched)
		}
		if again := NewShard(by, append(halves, halves...)...); again.String() != s.String() {
			t.Fatalf("shard %s, made from halves of its ranges, is %s", s, again)
		}
		if none := NewShard(by); (s.String() == none.String()) != (len(ranges) == 0) {
			t.Fatalf("a shard of %d ranges is %s, an empty one %s", len(ranges), s, none)
		}
	})
}

// TestShardsDivideAList checks that each object is in the pages of exactly one shard, in order, and that the objects
// outside the shard are counted.
func TestShardsDivideAList(t *testing.T) {
	schema := NewResourceSchema("things", nil)
	schema.IdentifyBy(func(head []byte) []byte { return head })
	c, err := New(Config{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	var objects []*Object
	for i := range 1000 {
		key := string(rune('a'+i%7)) + "/" + string(rune('A'+i/40)) + string(rune('A'+i%40))
		objects = append(objects, NewObject(ObjectConfig{Key: key, Revision: 1, Body: []byte(key)}, schema))
	}
	c.Reset(objects, 1)
	whole, _ := c.Snapshot().List(Query{}, nil)
	for _, by := range []ShardKey{ByIdentity, ByNamespace} {
		found := make(map[*Object]bool)
		for i := range uint64(16) {
			shard := NewShard(by, HashRange{i << 60, i<<60 | math.MaxUint64>>4})
			var all []*Object
			scanned, outside := 0, 0
			for from := ""; ; {
				page, err := c.Snapshot().List(Query{From: from, Shard: shard, Limit: 7}, nil)
				if err != nil {
					t.Fatal(err)
				}
				all, scanned, outside = append(all, page.Objects...), scanned+page.Scanned, outside+page.OutsideShard
				if from = page.Next; from == "" {
					break
				}
			}
			want := slices.DeleteFunc(slices.Clone(whole.Objects), func(o *Object) bool { return !shard.Matches(o) })
			if !slices.Equal(all, want) || scanned != len(whole.Objects) || outside != scanned-len(all) {
				t.Fatalf("shard %s: %d objects, want %d; %d scanned, %d outside", shard, len(all), len(want), scanned, outside)
			}
			for _, o := range all {
				if found[o] {
					t.Fatalf("%s is in two shards", o.Key())
				}
				found[o] = true
			}
		}
		if len(found) != len(whole.Objects) {
			t.Fatalf("%d of %d objects are in a shard", len(found), len(whole.Objects))
		}
	}
}
