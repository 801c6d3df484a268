package watch

import (
	"slices"

	"github.com/larder-io/larder/cache"
)

// router finds the groups that an event can concern. Each group has one routeKey.
// A router has no lock: the Hub's guards it.
type router struct {
	groups   map[routeKey][]*group
	triggers map[trigger]int                 // how many groups wait for values of each
	shards   [cache.NumShardKeys]*shardTable // nil without groups
}

// routeKey selects the events of a group: those of an object, of a value of a property, of a name or of a
// namespace. The zero routeKey selects all.
type routeKey struct {
	namespace, name string
	trigger         trigger
	value           string
}

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

// value returns o's value for t. It returns false if o cannot concern any group that waits for values of t.
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
	return &router{groups: make(map[routeKey][]*group), triggers: make(map[trigger]int)}
}

// routeKeyOf returns the routeKey of a group with the filter f.
func routeKeyOf(f *filter) routeKey {
	if f.namespace != "" && f.name != "" {
		return routeKey{namespace: f.namespace, name: f.name}
	}
	for _, req := range f.field.Requirements() {
		if value, found := f.field.RequiresExactMatch(req.Field); found {
			return routeKey{trigger: trigger{byField, req.Field}, value: value}
		}
	}
	reqs, _ := f.label.Requirements()
	for i := range reqs {
		if value, found := f.label.RequiresExactMatch(reqs[i].Key()); found {
			return routeKey{trigger: trigger{byLabel, reqs[i].Key()}, value: value}
		}
	}
	return routeKey{namespace: f.namespace, name: f.name}
}

// add adds g under its routeKey, or to a shardTable.
func (r *router) add(g *group) {
	at := routeKeyOf(&g.filter)
	// A group waits for hashes if nothing but the shard narrows it.
	if g.hashed = at == (routeKey{}) && g.shard != nil && narrowShard(&g.filter); g.hashed {
		t := r.shards[g.shard.Key()]
		if t == nil {
			t = new(shardTable)
			r.shards[g.shard.Key()] = t
		}
		t.groups++
		t.edit(g, func(at []*group) []*group { return append(at, g) })
		return
	}
	r.groups[at] = append(r.groups[at], g)
	if at.trigger != (trigger{}) {
		r.triggers[at.trigger]++
	}
}

// remove removes g.
func (r *router) remove(g *group) {
	without := func(at []*group) []*group { return slices.DeleteFunc(at, func(o *group) bool { return o == g }) }
	if g.hashed {
		t := r.shards[g.shard.Key()]
		t.edit(g, without)
		if t.groups--; t.groups == 0 {
			r.shards[g.shard.Key()] = nil
		}
		return
	}
	at := routeKeyOf(&g.filter)
	if r.groups[at] = without(r.groups[at]); len(r.groups[at]) == 0 {
		delete(r.groups, at)
	}
	if at.trigger == (trigger{}) {
		return
	}
	if r.triggers[at.trigger]--; r.triggers[at.trigger] == 0 {
		delete(r.triggers, at.trigger)
	}
}

// count adds more, which may be negative, to the number of watchers in the groups of g's shardTable.
func (r *router) count(g *group, more int) {
	if g.hashed {
		r.shards[g.shard.Key()].watchers += uint64(more)
	}
}

// concerned calls visit for each group that e can concern, once. It returns the number of states of e (its object
// before and after) times the number of watchers in shardTables that it has skipped.
func (r *router) concerned(e *cache.Event, visit func(*group)) (skipped uint64) {
	namespace, name := e.Subject().Namespace(), e.Subject().Name()
	r.visit(routeKey{}, visit)
	r.visit(routeKey{name: name}, visit)
	if namespace != "" {
		r.visit(routeKey{namespace: namespace}, visit)
		r.visit(routeKey{namespace: namespace, name: name}, visit)
	}
	for t := range r.triggers {
		now, isNow := t.value(e.Object)
		if isNow {
			r.visit(routeKey{trigger: t, value: now}, visit)
		}
		if before, was := t.value(e.Prev); was && !(isNow && before == now) {
			r.visit(routeKey{trigger: t, value: before}, visit)
		}
	}
	for key, t := range r.shards {
		if t != nil {
			skipped += t.concerned(cache.ShardKey(key), e, visit)
		}
	}
	return skipped
}

// visit calls visit for each group under a routeKey.
func (r *router) visit(at routeKey, visit func(*group)) {
	for _, g := range r.groups[at] {
		visit(g)
	}
}
