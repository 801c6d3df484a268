package cluster

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/larder-io/larder/bench"
)

// list returns the versions of all objects at a path, by key.
func (sim *simulation) list(ctx context.Context, path string) (map[uint64]uint64, error) {
	body, err := sim.control.informers.do(ctx, bench.Request{Method: http.MethodGet, Path: path, Accept: bench.Protobuf})
	if err != nil {
		return nil, err
	}
	versions := make(map[uint64]uint64)
	for item, rest := nextField(object(body), listItems); item != nil; item, rest = nextField(rest, listItems) {
		m := metaOf(item)
		versions[sim.key(m.namespace, m.name)] = m.version
	}
	return versions, nil
}

// followed returns all informers by path.
func (sim *simulation) followed() map[string][]*informer {
	all := make(map[string][]*informer)
	add := func(informers ...*informer) {
		for _, f := range informers {
			all[f.path] = append(all[f.path], f)
		}
	}
	add(sim.control.all...)
	for _, n := range sim.nodes {
		add(n.all...)
		n.mu.Lock()
		for _, m := range n.mounts {
			add(m.informer)
		}
		n.mu.Unlock()
	}
	return all
}

// watches returns the number of watches.
func (sim *simulation) watches() int {
	n := 0
	for _, all := range sim.followed() {
		n += len(all)
	}
	return n
}

// differs describes how the informer differs from a list, "" if it does not.
func (f *informer) differs(want map[uint64]uint64) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.items) != len(want) {
		return fmt.Sprintf("%s: %d objects instead of %d", f.path, len(f.items), len(want))
	}
	for key, v := range want {
		if f.items[key] != v {
			return fmt.Sprintf("%s: an object has version %d instead of %d", f.path, f.items[key], v)
		}
	}
	return ""
}

// verify compares all informers with consistent lists of their paths. It repeats a list until its informers do not
// differ, or the limit is over. It counts the informers that differ then, and describes one. It skips Leases, which
// change all the time.
func (sim *simulation) verify(ctx context.Context, limit time.Duration) (n int, what string, err error) {
	const between, lists = 200 * time.Millisecond, 8
	end := time.Now().Add(limit)
	var mu sync.Mutex // guards n and what
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(lists)
	for path, informers := range sim.followed() {
		if strings.HasSuffix(path, "/leases") {
			continue
		}
		group.Go(func() error {
			for {
				want, err := sim.list(ctx, path)
				if err != nil {
					return err
				}
				difference := ""
				informers = slices.DeleteFunc(informers, func(f *informer) bool {
					d := f.differs(want)
					difference = cmp.Or(d, difference)
					return d == ""
				})
				if len(informers) == 0 {
					return nil
				}
				if time.Now().After(end) {
					mu.Lock()
					defer mu.Unlock()
					n, what = n+len(informers), difference
					return nil
				}
				if err := bench.Sleep(ctx, between); err != nil {
					return err
				}
			}
		})
	}
	err = group.Wait()
	return n, what, err
}
