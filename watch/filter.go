package watch

import (
	"github.com/larder-io/larder/cache"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// filter is a scope (namespace and name), selectors and a shard. It is immutable.
type filter struct {
	namespace, name string // "" matches any
	label           labels.Selector
	field           fields.Selector
	shard           *cache.Shard // nil selects everything

	// all says that the selectors and the shard select everything.
	all bool
}

// groupKey identifies a filter's group: filters with the same key select the same objects.
type groupKey struct {
	namespace, name     string
	label, field, shard string
	// A selector of nothing has the same text as a selector of everything.
	noLabel, noField bool
}

func newFilter(options Options) (filter, groupKey) {
	label, field := options.Label, options.Field
	if label == nil {
		label = labels.Everything()
	}
	if field == nil {
		field = fields.Everything()
	}
	namespace := fixedValue(options.Namespace, field, "metadata.namespace")
	name := fixedValue(options.Name, field, "metadata.name")
	f := filter{namespace: namespace, name: name, label: label, field: field, shard: options.Shard}
	f.all = label.Empty() && field.Empty() && f.shard == nil
	id := groupKey{namespace: namespace, name: name, label: label.String(), field: field.String()}
	id.noLabel = id.label == "" && !label.Empty()
	id.noField = id.field == "" && !field.Empty()
	if f.shard != nil {
		id.shard = f.shard.String()
	}
	return f, id
}

// fixedValue returns the scope, or, if it is empty, the only value that the field selector allows for path.
func fixedValue(scope string, field fields.Selector, path string) string {
	if scope != "" {
		return scope
	}
	value, _ := field.RequiresExactMatch(path)
	return value
}

// inScope reports whether o has the namespace and name of the scope.
func (f *filter) inScope(o *cache.Object) bool {
	return (f.namespace == "" || f.namespace == o.Namespace()) && (f.name == "" || f.name == o.Name())
}

// selects reports whether the selectors and the shard match o, which is in the scope or nil.
func (f *filter) selects(o *cache.Object) bool {
	switch {
	case o == nil:
		return false
	case f.all:
		return true
	case o.Err() != nil:
		return false
	}
	return (f.shard == nil || f.shard.Matches(o)) && f.label.Matches(o.Labels()) && f.field.Matches(o.Fields())
}

// countOutsideShard returns how many of the objects before and after e are in the scope but not in the shard.
func (f *filter) countOutsideShard(e *cache.Event) (n uint64) {
	if f.shard == nil || !f.inScope(e.Subject()) {
		return 0
	}
	for _, o := range [...]*cache.Object{e.Prev, e.Object} {
		if o != nil && o.Err() == nil && !f.shard.Matches(o) {
			n++
		}
	}
	return n
}

// transition returns the delivery of e, and whether there is one: see the package's documentation.
func (f *filter) transition(e *cache.Event) (Delivery, bool) {
	subject := e.Subject()
	if !f.inScope(subject) {
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
	// It is unknown whether the selectors match a corrupt object, so the watcher ends instead of delivering a deletion.
	if subject.Err() != nil {
		d.Type, d.Object = corrupt, subject
	}
	return d, true
}
