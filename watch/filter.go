package watch

import (
	"github.com/larder-io/larder/cache"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// filter is a scope, and selectors within it. All watchers of a group have the same filter. It is
// immutable.
type filter struct {
	namespace, name string // "" is any
	label           labels.Selector
	field           fields.Selector
	shard           *cache.Shard // nil is everything

	// open says that the selectors and the shard select everything.
	open bool
}

// identity is the key of a filter's group: filters with the same identity select the same objects.
type identity struct {
	namespace, name     string
	label, field, shard string
	// A selector of nothing has the same text as a selector of everything.
	noLabel, noField bool
}

func newFilter(options Options) (filter, identity) {
	label, field := options.Label, options.Field
	if label == nil {
		label = labels.Everything()
	}
	if field == nil {
		field = fields.Everything()
	}
	namespace := narrow(options.Namespace, field, "metadata.namespace")
	name := narrow(options.Name, field, "metadata.name")
	f := filter{namespace: namespace, name: name, label: label, field: field, shard: options.Shard}
	f.open = label.Empty() && field.Empty() && f.shard == nil
	id := identity{namespace: namespace, name: name, label: label.String(), field: field.String()}
	id.noLabel = id.label == "" && !label.Empty()
	id.noField = id.field == "" && !field.Empty()
	if f.shard != nil {
		id.shard = f.shard.String()
	}
	return f, id
}

// narrow returns the scope, or, if that is empty, the one value that the field selector
// allows for path.
func narrow(scope string, field fields.Selector, path string) string {
	if scope != "" {
		return scope
	}
	value, _ := field.RequiresExactMatch(path)
	return value
}

// covers reports whether o is in the scope.
func (f *filter) covers(o *cache.Object) bool {
	return (f.namespace == "" || f.namespace == o.Namespace()) && (f.name == "" || f.name == o.Name())
}

// selects reports whether the selectors and the shard match o, which is in the scope or nil.
func (f *filter) selects(o *cache.Object) bool {
	switch {
	case o == nil:
		return false
	case f.open:
		return true
	case o.Err() != nil:
		return false
	}
	return (f.shard == nil || f.shard.Matches(o)) && f.label.Matches(o.Labels()) && f.field.Matches(o.Fields())
}

// outside counts the states in e, before it and now, that are in the scope but not in the shard.
func (f *filter) outside(e *cache.Event) (n uint64) {
	if f.shard == nil || !f.covers(e.Subject()) {
		return 0
	}
	for _, o := range [...]*cache.Object{e.Prev, e.Object} {
		if o != nil && o.Err() == nil && !f.shard.Matches(o) {
			n++
		}
	}
	return n
}

// transition returns the delivery of e, and whether there is one, by the rule of the
// package's doc.
func (f *filter) transition(e *cache.Event) (Delivery, bool) {
	subject := e.Subject()
	if !f.covers(subject) {
		return Delivery{}, false
	}
	before, now := f.selects(e.Prev), f.selects(e.Object)
	d := Delivery{Object: e.Object, Revision: e.Revision, event: e}
	switch {
	case !before && !now:
		return Delivery{}, false
	case now && before:
		d.Type = Modified
	case now:
		d.Type = Added
	default:
		d.Type, d.Object = Deleted, e.Prev
	}
	// Whether the selectors match an object that cannot be decoded is not known, so the
	// watcher ends instead of delivering a deletion.
	if subject.Err() != nil {
		d.Type, d.Object = corrupt, subject
	}
	return d, true
}
