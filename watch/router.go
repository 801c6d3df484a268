package watch

import (
	"slices"

	"github.com/larder-io/larder/cache"
)

// router finds the groups that may select an event. Each group has one routeKey. Hub.mu guards it.
type router struct {
	groups   map[routeKey][]*group
	triggers map[trigger]int                 // number of groups by trigger
	shards   [cache.NumShardKeys]*shardTable // nil without groups
}

// routeKey selects the events of an object, of a value of a trigger, of a name or of a namespace. The zero routeKey
// selects all events.
type routeKey struct {
	namespace, name string
	trigger         trigger
	value           string
}

// trigger is a field or label for which groups require one value.
type trigger struct {
	kind triggerKind
	name string
}

type triggerKind uint8

const (
	byField triggerKind = iota + 1
	byLabel
)

// value returns o's value for t. It returns false if no group that requires a value of t can select o.
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
	key := routeKeyOf(&g.filter)
	// Use a shardTable if only the shard narrows the filter.
	if g.byShard = key == (routeKey{}) && g.shard != nil && isNarrow(&g.filter); g.byShard {
		t := r.shards[g.shard.Key()]
		if t == nil {
			t = new(shardTable)
			r.shards[g.shard.Key()] = t
		}
		t.groups++
		t.edit(g, func(at []*group) []*group { return append(at, g) })
		return
	}
	r.groups[key] = append(r.groups[key], g)
	if key.trigger != (trigger{}) {
		r.triggers[key.trigger]++
	}
}

// remove removes g.
func (r *router) remove(g *group) {
	without := func(at []*group) []*group { return slices.DeleteFunc(at, func(o *group) bool { return o == g }) }
	if g.byShard {
		t := r.shards[g.shard.Key()]
		t.edit(g, without)
		if t.groups--; t.groups == 0 {
			r.shards[g.shard.Key()] = nil
		}
		return
	}
	key := routeKeyOf(&g.filter)
	if r.groups[key] = without(r.groups[key]); len(r.groups[key]) == 0 {
		delete(r.groups, key)
	}
	if key.trigger == (trigger{}) {
		return
	}
	if r.triggers[key.trigger]--; r.triggers[key.trigger] == 0 {
		delete(r.triggers, key.trigger)
	}
}

// countWatchers adds delta to the number of watchers in the groups of g's shardTable.
func (r *router) countWatchers(g *group, delta int) {
	if g.byShard {
		r.shards[g.shard.Key()].watchers += uint64(delta)
	}
}

// visitCandidates calls visit once for each group that may select e. It returns the number of objects in e (before and
// after) times the number of watchers in shardTables that it has skipped.
func (r *router) visitCandidates(e *cache.Event, visit func(*group)) (skipped uint64) {
	namespace, name := e.Subject().Namespace(), e.Subject().Name()
	r.visitKey(routeKey{}, visit)
	r.visitKey(routeKey{name: name}, visit)
	if namespace != "" {
		r.visitKey(routeKey{namespace: namespace}, visit)
		r.visitKey(routeKey{namespace: namespace, name: name}, visit)
	}
	for t := range r.triggers {
		now, isNow := t.value(e.Object)
		if isNow {
			r.visitKey(routeKey{trigger: t, value: now}, visit)
		}
		if before, was := t.value(e.Prev); was && !(isNow && before == now) {
			r.visitKey(routeKey{trigger: t, value: before}, visit)
		}
	}
	for key, t := range r.shards {
		if t != nil {
			skipped += t.visitCandidates(cache.ShardKey(key), e, visit)
		}
	}
	return skipped
}

// visitKey calls visit for each group under a routeKey.
func (r *router) visitKey(key routeKey, visit func(*group)) {
	for _, g := range r.groups[key] {
		visit(g)
	}
}
