package kv_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv"
)

// Subject is an open store under test, with operations on its server that the suite needs.
type Subject struct {
	kv.Store
	// Stop ends Run and waits for it.
	Stop func()
	// Compact discards the history before a revision.
	Compact func(ctx context.Context, revision int64) error
	// PutAll writes several keys in one revision, which it returns. A nil value deletes a key.
	PutAll func(ctx context.Context, values map[string][]byte) (int64, error)
	// Imitation says that the server implements only the part of etcd's API that kube-apiserver needs. Transactions write
	// one key, so PutAll writes the keys one by one. Watches cannot begin in the future or at the compacted revision.
	Imitation bool
}

// limit is the timeout of a test.
const limit = proctest.Patience

// testConformance tests the guarantees of package kv. The store that open returns must be running, and is not stopped.
// Only keys under "/conformance/" are changed. The test of the end of Run opens another store.
func testConformance(t *testing.T, open func(t *testing.T) Subject) {
	store := open(t)
	for _, c := range []struct {
		name string
		test func(*suite)
	}{
		{"Get", (*suite).testGet},
		{"Put", (*suite).testPut},
		{"Delete", (*suite).testDelete},
		{"Range", (*suite).testRange},
		{"RangePages", (*suite).testRangePages},
		{"RangeBorrowed", (*suite).testRangeBorrowed},
		{"RangePast", (*suite).testRangePast},
		{"Watch", (*suite).testWatch},
		{"WatchWholeRevisions", (*suite).testWatchWholeRevisions},
		{"WatchFuture", (*suite).testWatchFuture},
		{"WatchCancel", (*suite).testWatchCancel},
		{"Progress", (*suite).testProgress},
		{"Revision", (*suite).testRevision},
		{"Counter", (*suite).testCounter},
		{"Cancelled", (*suite).testCancelled},
		{"Expiry", (*suite).testExpiry},
		{"Tail", (*suite).testTail},
		{"Replay", (*suite).testReplay},
		{"Compacted", (*suite).testCompacted},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			c.test(&suite{T: t, Subject: store, ctx: ctx, prefix: "/conformance/" + c.name + "/"})
		})
	}
	t.Run("Close", func(t *testing.T) { testClose(t, open(t)) })
}

// suite is one test of a store.
type suite struct {
	*testing.T
	Subject
	ctx    context.Context
	prefix string
}

// put writes a key unconditionally and returns its new revision.
func (s *suite) put(key, value string) int64 {
	s.Helper()
	item, _, _, err := s.Get(s.ctx, s.prefix+key)
	s.must(err)
	result, err := s.Put(s.ctx, s.prefix+key, []byte(value), kv.PutOptions{IfRevision: item.Revision})
	s.must(err)
	if !result.Committed || result.Revision <= item.Revision {
		s.Fatalf("put %s over revision %d: %+v", key, item.Revision, result)
	}
	return result.Revision
}

func (s *suite) delete(key string) int64 {
	s.Helper()
	item, _, _, err := s.Get(s.ctx, s.prefix+key)
	s.must(err)
	result, err := s.Delete(s.ctx, s.prefix+key, item.Revision)
	s.must(err)
	if !result.Committed || string(result.Current.Value) != string(item.Value) {
		s.Fatalf("delete %s: %+v", key, result)
	}
	return result.Revision
}

func (s *suite) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *suite) expectItem(got kv.Item, key, value string, revision, created int64) {
	s.Helper()
	if got.Key != s.prefix+key || string(got.Value) != value || got.Revision != revision || got.CreateRevision != created {
		s.Errorf("got %s=%q at %d, created at %d; want %s=%q at %d, created at %d", got.Key, got.Value, got.Revision,
			got.CreateRevision, s.prefix+key, value, revision, created)
	}
}

func (s *suite) testGet() {
	_, found, before, err := s.Get(s.ctx, s.prefix+"a")
	s.must(err)
	if found || before < 1 {
		s.Errorf("missing key: found %v at revision %d, want false at a positive one", found, before)
	}
	created := s.put("a", "1")
	updated := s.put("a", "2")
	item, found, revision, err := s.Get(s.ctx, s.prefix+"a")
	s.must(err)
	if !found || revision < updated || updated <= created || created <= before {
		s.Errorf("found %v at %d; created at %d, updated at %d; want growing revisions", found, revision, created, updated)
	}
	s.expectItem(item, "a", "2", updated, created)
	s.delete("a")
	if _, found, _, err = s.Get(s.ctx, s.prefix+"a"); found || err != nil {
		s.Errorf("deleted key: found %v, error %v", found, err)
	}
}

func (s *suite) testPut() {
	key := s.prefix + "a"
	put := func(value string, revision int64) kv.WriteResult {
		s.Helper()
		result, err := s.Put(s.ctx, key, []byte(value), kv.PutOptions{IfRevision: revision})
		s.must(err)
		return result
	}
	if got := put("0", 12345678); got.Committed || got.Found {
		s.Errorf("update of a missing key: got %+v, want neither committed nor found", got)
	}
	created := put("1", 0)
	if !created.Committed {
		s.Fatalf("create: %+v", created)
	}
	got := put("2", 0)
	if got.Committed || !got.Found {
		s.Errorf("create of an existing key: got %+v, want found and not committed", got)
	}
	s.expectItem(got.Current, "a", "1", created.Revision, created.Revision)
	updated := put("3", created.Revision)
	if !updated.Committed || updated.Revision <= created.Revision {
		s.Errorf("update: got %+v, want a commit at a later revision", updated)
	}
	got = put("4", created.Revision)
	if got.Committed || !got.Found {
		s.Errorf("update of an old revision: got %+v, want found and not committed", got)
	}
	s.expectItem(got.Current, "a", "3", updated.Revision, created.Revision)
	if again := put("3", updated.Revision); !again.Committed || again.Revision <= updated.Revision {
		s.Errorf("the same value again: got %+v, want a commit at a later revision", again)
	}
}

func (s *suite) testDelete() {
	key := s.prefix + "a"
	for _, revision := range []int64{0, 7} {
		got, err := s.Delete(s.ctx, key, revision)
		s.must(err)
		if got.Committed || got.Found {
			s.Errorf("delete of a missing key at %d: got %+v, want neither committed nor found", revision, got)
		}
	}
	created := s.put("a", "1")
	got, err := s.Delete(s.ctx, key, created-1)
	s.must(err)
	if got.Committed || !got.Found {
		s.Errorf("delete of an old revision: got %+v, want found and not committed", got)
	}
	s.expectItem(got.Current, "a", "1", created, created)
	got, err = s.Delete(s.ctx, key, created)
	s.must(err)
	if !got.Committed || !got.Found || got.Revision <= created {
		s.Errorf("delete: got %+v, want a commit at a later revision", got)
	}
	s.expectItem(got.Current, "a", "1", created, created)
	if again := s.put("a", "2"); again <= got.Revision {
		s.Errorf("created again at %d, deleted at %d", again, got.Revision)
	}
}

// keys returns a page's keys without the suite's prefix.
func (s *suite) keys(page kv.Page) []string {
	keys := make([]string, len(page.Items))
	for i, item := range page.Items {
		keys[i] = strings.TrimPrefix(item.Key, s.prefix)
	}
	return keys
}

func (s *suite) testRange() {
	for _, key := range []string{"b/2", "a-b/1", "a/2", "a/1", "b/1", "a/3", "\xff/1"} {
		s.put(key, "value of "+key)
	}
	for _, c := range []struct {
		options     kv.RangeOptions
		want        []string
		count       int64
		more, empty bool
	}{
		{options: kv.RangeOptions{}, want: []string{"a-b/1", "a/1", "a/2", "a/3", "b/1", "b/2", "\xff/1"}, count: 7},
		{options: kv.RangeOptions{Prefix: "a/"}, want: []string{"a/1", "a/2", "a/3"}, count: 3},
		{options: kv.RangeOptions{Prefix: "a"}, want: []string{"a-b/1", "a/1", "a/2", "a/3"}, count: 4},
		{options: kv.RangeOptions{Prefix: "\xff"}, want: []string{"\xff/1"}, count: 1},
		{options: kv.RangeOptions{Prefix: "a/", Limit: 2}, want: []string{"a/1", "a/2"}, count: 3, more: true},
		{options: kv.RangeOptions{Prefix: "a/", Limit: 3}, want: []string{"a/1", "a/2", "a/3"}, count: 3},
		{options: kv.RangeOptions{Prefix: "a/", Start: "a/2"}, want: []string{"a/2", "a/3"}, count: 2},
		{options: kv.RangeOptions{Prefix: "a/", Start: "a/2\x00", Limit: 1}, want: []string{"a/3"}, count: 1},
		{options: kv.RangeOptions{Prefix: "a/", Start: "a/4"}, want: nil},
		{options: kv.RangeOptions{Prefix: "c/"}, want: nil},
		{options: kv.RangeOptions{Prefix: "a/", KeysOnly: true}, want: []string{"a/1", "a/2", "a/3"}, count: 3, empty: true},
		{options: kv.RangeOptions{Prefix: "a/", CountOnly: true}, want: nil, count: 3},
	} {
		options := c.options
		options.Prefix = s.prefix + options.Prefix
		if options.Start != "" {
			options.Start = s.prefix + options.Start
		}
		page, err := s.Subject.Range(s.ctx, options)
		s.must(err)
		if got := s.keys(page); !slices.Equal(got, c.want) || page.Count != c.count || page.More != c.more {
			s.Errorf("%+v: %q of %d, more %v; want %q of %d, more %v", c.options, got, page.Count, page.More, c.want, c.count, c.more)
		}
		for _, item := range page.Items {
			want := "value of " + strings.TrimPrefix(item.Key, s.prefix)
			if c.empty {
				want = ""
			}
			if string(item.Value) != want {
				s.Errorf("%+v: %s has value %q, want %q", c.options, item.Key, item.Value, want)
			}
		}
	}
}

func (s *suite) testRangePages() {
	var want []string
	for i := range 25 {
		key := fmt.Sprintf("%02d", i)
		s.put(key, "1")
		want = append(want, key)
	}
	for _, size := range []int64{0, 1, 7, 25, 100} {
		var got []string
		var revisions []int64
		revision, err := kv.RangeAll(s.ctx, s.Store, kv.RangeOptions{Prefix: s.prefix, Limit: size}, func(page kv.Page) error {
			got = append(got, s.keys(page)...)
			revisions = append(revisions, page.Revision)
			// Changes between two pages are in neither.
			s.put("99", strconv.Itoa(len(got)))
			s.delete("99")
			return nil
		})
		s.must(err)
		if !slices.Equal(got, want) || slices.Min(revisions) != revision || slices.Max(revisions) != revision {
			s.Errorf("pages of %d: got %q at revisions %d, want %q at %d", size, got, revisions, want, revision)
		}
	}
	failure := errors.New("enough")
	if _, err := kv.RangeAll(s.ctx, s.Store, kv.RangeOptions{Prefix: s.prefix, Limit: 7}, func(kv.Page) error { return failure }); !errors.Is(err, failure) {
		s.Errorf("failing callback: got error %v, want %v", err, failure)
	}
}

// testRangeBorrowed checks that borrowed values equal others until they are released, and that no two pages share
// memory.
func (s *suite) testRangeBorrowed() {
	for i := range 20 {
		s.put(fmt.Sprintf("%02d", i), strings.Repeat(strconv.Itoa(i), 40_000))
	}
	s.put("20", "")
	for _, limit := range []int64{0, 8, 1, 0} {
		opts := kv.RangeOptions{Prefix: s.prefix, Limit: limit}
		want, err := s.Subject.Range(s.ctx, opts)
		s.must(err)
		opts.Borrow, opts.Revision = true, want.Revision
		var held []kv.Page
		for range 3 {
			page, err := s.Subject.Range(s.ctx, opts)
			s.must(err)
			held = append(held, page)
		}
		for _, page := range held {
			if page.Revision != want.Revision || page.Count != want.Count || page.More != want.More || len(page.Items) != len(want.Items) {
				s.Fatalf("limit %d: %d items of %d, want %d of %d", limit, len(page.Items), page.Count, len(want.Items), want.Count)
			}
			for i, item := range page.Items {
				if w := want.Items[i]; item.Key != w.Key || !bytes.Equal(item.Value, w.Value) || item.Revision != w.Revision || item.CreateRevision != w.CreateRevision || item.Lease != w.Lease {
					s.Errorf("limit %d: borrowed item %s differs from the one that is not", limit, w.Key)
				}
			}
			page.Release()
		}
	}
	found := 0
	_, err := kv.RangeAll(s.ctx, s.Store, kv.RangeOptions{Prefix: s.prefix, Limit: kv.FittingPages, Borrow: true}, func(page kv.Page) error {
		found += len(page.Items)
		page.Release()
		return nil
	})
	if s.must(err); found != 21 {
		s.Errorf("read %d items in pages, want 21", found)
	}
}

// testRangePast reads at past revisions, and at a future one.
func (s *suite) testRangePast() {
	var revisions []int64
	for i := range 5 {
		revisions = append(revisions, s.put("a", strconv.Itoa(i)))
	}
	deleted := s.delete("a")
	for i, revision := range revisions {
		page, err := s.Subject.Range(s.ctx, kv.RangeOptions{Prefix: s.prefix, Revision: revision})
		s.must(err)
		if len(page.Items) != 1 || page.Revision != revision {
			s.Fatalf("at %d: got %+v, want one item", revision, page)
		}
		s.expectItem(page.Items[0], "a", strconv.Itoa(i), revision, revisions[0])
	}
	page, err := s.Subject.Range(s.ctx, kv.RangeOptions{Prefix: s.prefix, Revision: deleted})
	s.must(err)
	if len(page.Items) != 0 {
		s.Errorf("after the deletion: got %+v, want no items", page)
	}
	_, err = s.Subject.Range(s.ctx, kv.RangeOptions{Prefix: s.prefix, Revision: deleted + 1_000_000})
	var failed *kv.Error
	if !errors.Is(err, kv.ErrFutureRevision) || !errors.As(err, &failed) {
		s.Errorf("range at a future revision: got error %v, want ErrFutureRevision", err)
	}
}

func (s *suite) testRevision() {
	for i := range 10 {
		written := s.put("a", strconv.Itoa(i))
		group, ctx := errgroup.WithContext(s.ctx)
		for range 8 {
			group.Go(func() error {
				revision, err := s.Revision(ctx)
				if err == nil && revision < written {
					err = fmt.Errorf("revision %d after a write of %d", revision, written)
				}
				return err
			})
		}
		s.must(group.Wait())
	}
	s.must(s.Health(s.ctx))
}

// testCounter has several writers increment one key. Each increment must be committed once, and the watch must see
// each.
func (s *suite) testCounter() {
	const writers, each = 4, 15
	start := s.put("n", "0")
	watch := s.Watch(s.ctx, s.prefix, start)
	group, ctx := errgroup.WithContext(s.ctx)
	for range writers {
		group.Go(func() error {
			for done := 0; done < each; {
				item, _, _, err := s.Get(ctx, s.prefix+"n")
				if err != nil {
					return err
				}
				n, _ := strconv.Atoi(string(item.Value))
				result, err := s.Put(ctx, s.prefix+"n", []byte(strconv.Itoa(n+1)), kv.PutOptions{IfRevision: item.Revision})
				if err != nil {
					return err
				}
				if result.Committed {
					done++
				}
			}
			return nil
		})
	}
	s.must(group.Wait())
	n := 0
	for _, batch := range s.follow(watch, writers*each) {
		n++
		if got := string(batch.Events[0].Value); got != strconv.Itoa(n) {
			s.Fatalf("event %d has value %s, want %d", n, got, n)
		}
	}
}

func (s *suite) testCancelled() {
	ctx, cancel := context.WithCancel(s.ctx)
	cancel()
	_, _, _, get := s.Get(ctx, s.prefix+"a")
	_, list := s.Subject.Range(ctx, kv.RangeOptions{Prefix: s.prefix})
	_, put := s.Put(ctx, s.prefix+"a", nil, kv.PutOptions{})
	_, revision := s.Revision(ctx)
	for name, err := range map[string]error{"Get": get, "Range": list, "Put": put, "Revision": revision} {
		if !errors.Is(err, context.Canceled) {
			s.Errorf("%s with a cancelled context: got error %v, want context.Canceled", name, err)
		}
	}
	for response := range s.Watch(ctx, s.prefix, 1) {
		s.Errorf("watch with a cancelled context delivered %+v", response)
	}
}

// testExpiry has keys expire. If the machine was too slow to read them before, it tries again with a longer TTL.
func (s *suite) testExpiry() {
	for ttl := 1500 * time.Millisecond; ; ttl *= 2 {
		try := *s
		try.prefix += ttl.String() + "/"
		if try.expires(ttl) {
			return
		}
		s.Logf("the keys were not read within %v", ttl)
	}
}

// expires reports whether keys with this TTL could be read before they expired.
func (s *suite) expires(ttl time.Duration) bool {
	start, err := s.Revision(s.ctx)
	s.must(err)
	watch := s.Watch(s.ctx, s.prefix, start)
	begun := time.Now()
	revisions := make(map[string]int64)
	for _, key := range []string{"a", "b", "kept"} {
		result, err := s.Put(s.ctx, s.prefix+key, []byte("1"), kv.PutOptions{TTL: ttl})
		s.must(err)
		revisions[key] = result.Revision
	}
	leased := make(map[string]int64)
	for _, key := range []string{"a", "b", "kept"} {
		item, _, _, err := s.Get(s.ctx, s.prefix+key)
		s.must(err)
		leased[key] = item.Lease
	}
	// A write without TTL detaches the key from its lease.
	result, err := s.Put(s.ctx, s.prefix+"kept", []byte("2"), kv.PutOptions{IfRevision: revisions["kept"]})
	s.must(err)
	if time.Since(begun) >= ttl {
		return false
	}
	if leased["a"] == 0 || leased["b"] == 0 || leased["kept"] == 0 || !result.Committed {
		s.Fatalf("with a TTL: leases %v; without: %+v", leased, result)
	}
	if item, _, _, err := s.Get(s.ctx, s.prefix+"kept"); err != nil || item.Lease != 0 {
		s.Errorf("kept has lease %d, %v", item.Lease, err)
	}
	s.expectExpired(watch)
	return true
}

// expectExpired waits for the deletion of the keys that still have a TTL, and of no others.
func (s *suite) expectExpired(watch <-chan kv.WatchResponse) {
	s.follow(watch, 4)
	var expired []string
	for _, batch := range s.follow(watch, 2) {
		for _, event := range batch.Events {
			expired = append(expired, event.Kind.String()+" "+strings.TrimPrefix(event.Key, s.prefix))
		}
	}
	slices.Sort(expired)
	if want := []string{"delete a", "delete b"}; !slices.Equal(expired, want) {
		s.Errorf("expired %q, want %q", expired, want)
	}
	if _, found, _, err := s.Get(s.ctx, s.prefix+"kept"); !found || err != nil {
		s.Errorf("kept: found %v, %v", found, err)
	}
}

func testClose(t *testing.T, store Subject) {
	revision, err := store.Revision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	watch := store.Watch(t.Context(), "/conformance/", revision)
	store.Stop()
	for response := range watch {
		if response.Err != nil && !errors.Is(response.Err, kv.ErrClosed) {
			t.Errorf("watch ended with %v", response.Err)
		}
	}
	_, _, _, get := store.Get(t.Context(), "/conformance/a")
	_, put := store.Put(t.Context(), "/conformance/a", nil, kv.PutOptions{})
	_, read := store.Revision(t.Context())
	_, list := store.Range(t.Context(), kv.RangeOptions{Prefix: "/conformance/"})
	_, remove := store.Delete(t.Context(), "/conformance/a", revision)
	watch = store.Watch(t.Context(), "/conformance/", 1)
	response := <-watch
	for name, err := range map[string]error{"Get": get, "Put": put, "Revision": read, "Range": list, "Delete": remove, "Watch": response.Err} {
		if !errors.Is(err, kv.ErrClosed) {
			t.Errorf("%s after Run: got error %v, want ErrClosed", name, err)
		}
	}
	for response := range watch {
		t.Errorf("after its error the watch delivered %+v", response)
	}
}
