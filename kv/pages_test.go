package kv_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/kvtest"
)

// limits is a store that records the limits of Range calls.
type limits struct {
	kv.Store
	requested []int64
}

// Range implements kv.Store.
func (l *limits) Range(ctx context.Context, opts kv.RangeOptions) (kv.Page, error) {
	l.requested = append(l.requested, opts.Limit)
	return l.Store.Range(ctx, opts)
}

// TestPagesFitIntoMemory checks that small items are read in few pages, and large ones in pages of limited size.
func TestPagesFitIntoMemory(t *testing.T) {
	for _, c := range []struct {
		items, size int
		pages       int // at most
		bytes       int // at most, of each page but the first
	}{
		{items: 30_000, size: 10, pages: 4, bytes: 10_000 * 64},
		{items: 1200, size: 300_000, pages: 30, bytes: 9 << 20},
		{items: 8000, size: 200_000, pages: 50, bytes: 33 << 20},
		{items: 500, size: 10, pages: 1},
		{items: 0, pages: 1},
	} {
		store := kvtest.NewMemory()
		value, all := bytes.Repeat([]byte("x"), c.size), map[string][]byte{}
		for i := range c.items {
			all[fmt.Sprintf("/registry/things/%06d", i)] = value
		}
		store.PutAll(all)
		l, found := &limits{Store: store}, 0
		_, err := kv.RangeAll(t.Context(), l, kv.RangeOptions{Prefix: "/registry/things/", Limit: kv.FittingPages}, func(page kv.Page) error {
			found += len(page.Items)
			size := 0
			for _, item := range page.Items {
				size += len(item.Key) + len(item.Value)
			}
			if len(l.requested) > 1 && size > c.bytes {
				t.Errorf("a page has %d bytes, want at most %d", size, c.bytes)
			}
			return nil
		})
		if err != nil || found != c.items || len(l.requested) > c.pages {
			t.Errorf("%d items of %d bytes: read %d with limits %d, error %v; want at most %d pages", c.items, c.size, found, l.requested, err, c.pages)
		}
	}
}
