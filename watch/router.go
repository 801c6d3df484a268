package watch

import (
	"slices"

	"github.com/larder-io/larder/cache"
)

// router finds the groups that an event can concern. Each group waits at one place.
// A router has no lock: the Hub's guards it.
type router struct {
	all        []*group
	namespaces map[string][]*group
	names      map[string][]*group
	objects    map[objectName][]*group
	triggers   map[trigger]map[string][]*group
	shards     [cache.ShardKeys]*shardTable // nil without groups
}

type objectName struct{ namespace, name string }

// trigger is a property of objects by whose values groups wait.
type trigger struct {
	kind triggerKind
	name string
}

type triggerKind uint8

const (
	byField triggerKind = iota + 1
	byLabel
)

// value returns o's value for t, and whether o can concern a group that waits for values of
// t at all.
func (t trigger) value(o *cache.Object) (string, bool) {
	switch {
	case o == nil || o.Err() != nil:
		return "", false
	case t.kind == byField:
		return o.Fields().Get(t.name), true
	default:
		return o.Labels().Lookup(t.name)
	}
}

func newRouter() *router {
	return &router{
		namespaces: make(map[string][]*group),
		names:      make(map[string][]*group),
		objects:    make(map[objectName][]*group),
		triggers:   make(map[trigger]map[string][]*group),
	}
}

// place returns the trigger and value at which f can wait, if it requires any.
func (r *router) place(f *filter) (t trigger, value string, found bool) {
	for _, req := range f.field.Requirements() {
		if value, found = f.field.RequiresExactMatch(req.Field); found {
			return trigger{byField, req.Field}, value, true
		}
	}
	reqs, _ := f.label.Requirements()
	for i := range reqs {
		if value, found = f.label.RequiresExactMatch(reqs[i].Key()); found {
			return trigger{byLabel, reqs[i].Key()}, value, true
		}
	}
	return trigger{}, "", false
}

// add lets g wait at its place.
func (r *router) add(g *group) {
	if g.hashed = r.narrows(&g.filter); g.hashed {
		t := r.shards[g.shard.Key()]
		if t == nil {
			t = new(shardTable)
			r.shards[g.shard.Key()] = t
		}
		t.groups++
		t.edit(g, func(at []*group) []*group { return append(at, g) })
		return
	}
	r.edit(g, func(at []*group) []*group {
		g.slot = len(at)
		return append(at, g)
	})
}

// remove takes g from its place.
func (r *router) remove(g *group) {
	if g.hashed {
		t := r.shards[g.shard.Key()]
		t.edit(g, func(at []*group) []*group { return slices.DeleteFunc(at, func(o *group) bool { return o == g }) })
		if t.groups--; t.groups == 0 {
			r.shards[g.shard.Key()] = nil
		}
		return
	}
	r.edit(g, func(at []*group) []*group {
		last := len(at) - 1
		at[g.slot] = at[last]
		at[g.slot].slot = g.slot
		at[last] = nil
		return at[:last]
	})
}

// narrows reports whether f can wait for hashes: nothing but the shard narrows it.
func (r *router) narrows(f *filter) bool {
	if f.shard == nil || f.namespace != "" || f.name != "" {
		return false
	}
	_, _, found := r.place(f)
	return !found && narrowShard(f)
}

// count notes that more watchers, or fewer, are in a group of a shard.
func (r *router) count(g *group, more int) {
	if g.hashed {
		r.shards[g.shard.Key()].watchers += uint64(more)
	}
}

// edit applies change to the place of g.
func (r *router) edit(g *group, change func([]*group) []*group) {
	if g.namespace != "" && g.name != "" {
		editMap(r.objects, objectName{g.namespace, g.name}, change)
		return
	}
	if t, value, found := r.place(&g.filter); found {
		values := r.triggers[t]
		if values == nil {
			values = make(map[string][]*group)
			r.triggers[t] = values
		}
		editMap(values, value, change)
		if len(values) == 0 {
			delete(r.triggers, t)
		}
		return
	}
	switch {
	case g.name != "":
		editMap(r.names, g.name, change)
	case g.namespace != "":
		editMap(r.namespaces, g.namespace, change)
	default:
		r.all = change(r.all)
	}
}

// editMap applies change to the groups under k, and drops k when none is left.
func editMap[K comparable](m map[K][]*group, k K, change func([]*group) []*group) {
	at := change(m[k])
	if len(at) == 0 {
		delete(m, k)
		return
	}
	m[k] = at
}

// concerned calls visit for each group that e can concern, once. It returns how many states of
// e were not shown to watchers because of their shards.
func (r *router) concerned(e *cache.Event, visit func(*group)) (passed uint64) {
	some := e.Subject()
	each(r.all, visit)
	each(r.namespaces[some.Namespace()], visit)
	if len(r.names) > 0 {
		each(r.names[some.Name()], visit)
	}
	if len(r.objects) > 0 {
		each(r.objects[objectName{some.Namespace(), some.Name()}], visit)
	}
	for t, values := range r.triggers {
		now, isNow := t.value(e.Object)
		if isNow {
			each(values[now], visit)
		}
		if before, was := t.value(e.Prev); was && !(isNow && before == now) {
			each(values[before], visit)
		}
	}
	for key, t := range r.shards {
		if t != nil {
			passed += t.concerned(cache.ShardKey(key), e, visit)
		}
	}
	return passed
}

func each(groups []*group, visit func(*group)) {
	for _, g := range groups {
		visit(g)
	}
}
