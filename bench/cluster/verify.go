package cluster

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/larder-io/larder/bench"
)

// listed is an object of a consistent list.
type listed struct {
	namespace, name, node string
	version               uint64
}

func (sim *simulation) list(ctx context.Context, c *client, path string) ([]listed, error) {
	body, err := c.do(ctx, &bench.Request{Method: http.MethodGet, Path: path, Accept: bench.Protobuf})
	if err != nil {
		return nil, err
	}
	var all []listed
	rest := object(body)
	for {
		var item []byte
		if item, rest = nextField(rest, listItems); item == nil {
			return all, nil
		}
		m := metaOf(item)
		all = append(all, listed{string(m.namespace), string(m.name), string(field(field(item, podSpec), podNode)), m.version})
	}
}

// followed returns all informers by the path of their collection.
func (sim *simulation) followed() map[string][]*informer {
	all := make(map[string][]*informer)
	add := func(f *informer) {
		base, _, _ := strings.Cut(f.path, "?")
		if rest, ok := strings.CutPrefix(base, "/api/v1/namespaces/"); ok && strings.Contains(rest, "/") {
			_, resource, _ := strings.Cut(rest, "/")
			base = "/api/v1/" + resource
		}
		all[base] = append(all[base], f)
	}
	for _, f := range sim.control.all {
		add(f)
	}
	for _, n := range sim.nodes {
		for _, f := range n.all {
			add(f)
		}
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

// differing counts the informers whose objects differ from a list. It skips Leases, which change all the time.
func (sim *simulation) differing(ctx context.Context) (n int, first string, err error) {
	for path, informers := range sim.followed() {
		if strings.HasSuffix(path, "/leases") {
			continue
		}
		l, err := sim.list(ctx, sim.control.informers, path)
		if err != nil {
			return 0, "", err
		}
		index := sim.index(l)
		for _, f := range informers {
			if strings.Contains(f.path, "status.phase") {
				continue // the informer selects only pods that have not ended, and the index does not know their phase
			}
			if what := f.differs(index); what != "" {
				if n++; first == "" {
					first = what
				}
			}
		}
	}
	return n, first, nil
}

// selection is the part of a collection that an informer selects: all objects, the
// object of a namespace and name, or the pods of a node.
type selection struct{ namespace, name, node string }

// index groups a list by the selections of informers.
func (sim *simulation) index(l []listed) map[selection]map[uint64]uint64 {
	index := make(map[selection]map[uint64]uint64)
	for _, item := range l {
		key := sim.key([]byte(item.namespace), []byte(item.name))
		for _, s := range []selection{{}, {namespace: item.namespace, name: item.name}, {node: item.node}} {
			if index[s] == nil {
				index[s] = make(map[uint64]uint64)
			}
			index[s][key] = item.version
		}
	}
	return index
}

// selects returns the selection of the informer.
func (f *informer) selects() selection {
	base, query, _ := strings.Cut(f.path, "?")
	values, _ := url.ParseQuery(query) // newInformer's callers write valid queries
	var s selection
	name, value, _ := strings.Cut(values.Get("fieldSelector"), "=")
	switch name {
	case "metadata.name":
		s.name = value
	case "spec.nodeName":
		s.node = value
	}
	if rest, ok := strings.CutPrefix(base, "/api/v1/namespaces/"); ok {
		s.namespace, _, _ = strings.Cut(rest, "/")
	}
	return s
}

// differs describes how the informer differs from the list, "" if it does not.
func (f *informer) differs(index map[selection]map[uint64]uint64) string {
	want := index[f.selects()]
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

// verify waits until all informers have the contents of a list, and counts those that still differ.
func (sim *simulation) verify(ctx context.Context, limit time.Duration) (n int, first string, err error) {
	const between = 200 * time.Millisecond
	for end := time.Now().Add(limit); ; {
		n, first, err = sim.differing(ctx)
		if err != nil || n == 0 || time.Now().After(end) {
			return n, first, err
		}
		if bench.Sleep(sim.over, between) != nil {
			return n, first, ctx.Err()
		}
	}
}
