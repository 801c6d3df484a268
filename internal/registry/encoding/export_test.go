package encoding

import (
	"bytes"
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry/wire"
)

// Read decodes a stored value as upstream's storages do for readers.
func (c *Codec) Read(value []byte, revision int64) (runtime.Object, error) {
	obj := c.New()
	if err := c.DecodeUpstream(value, obj, revision); err != nil {
		return nil, err
	}
	if c.Decorate != nil {
		c.Decorate(obj)
	}
	return obj, nil
}

// DecodeUpstream is DecodeStored with upstream's codec alone.
func (c *Codec) DecodeUpstream(data []byte, into runtime.Object, revision int64) error {
	if _, _, err := c.Storage.Decode(data, nil, into); err != nil {
		return err
	}
	return c.SetRevision(into, revision)
}

// DecodeUnknown is DecodeValue without known fingerprints.
func (c *Codec) DecodeUnknown(rest string, value []byte, revision int64) *cache.Object {
	known := c.rules
	defer func() { c.rules = known }()
	c.rules = nil
	return c.DecodeValue(context.Background(), rest, rest, value, revision)
}

// Layouts of messages.
type (
	Layouts = layouts
	Layout  = layout
)

// Inner returns the layouts of a nested message, nil if it has none.
func (l *layout) Inner() *Layouts { return l.inner }

// IsTime reports whether a field is a time, and whether it has a fraction of a second.
func (l *layout) IsTime() (is, micro bool) {
	return l.role == timeToken || l.role == microTimeToken, l.role == microTimeToken
}

// IsKept reports whether a skeleton contains the field unchanged.
func (l *layout) IsKept() bool { return l.role == literalField }

// Tokens returns the fields that are tokens in objects of a version, nil if these have no fingerprints.
func (c *Codec) Tokens(gvk schema.GroupVersionKind) *Layouts {
	if c.rules != nil {
		head := wire.Envelope(gvk.GroupVersion().String(), gvk.Kind)
		for _, kind := range c.rules.kinds {
			if bytes.Equal(kind.head, head) {
				return kind.layouts()
			}
		}
	}
	return nil
}

// Fingerprints returns how many values a rule has completed, and how many lookups found no rule.
func (c *Codec) Fingerprints() (hits, misses uint64) {
	return c.rules.hits.Load(), c.rules.misses.Load()
}

// Recognized reports whether a value matches one of the latest patterns.
func (c *Codec) Recognized(value []byte) bool {
	kind, raw := c.rules.kindOf(value)
	return kind != nil && c.rules.matchRecent(&inspected{raw: raw}, kind)
}

// FingerprintsKnown returns the number of remembered fingerprints.
func (c *Codec) FingerprintsKnown() int { return len(c.rules.rules) }

// ItemAt returns o as an item with revision in place of its own, as a DELETED
// event shows it. The bytes are shared only if the revisions are equal.
func (e *Encoder) ItemAt(o *cache.Object, revision int64) ([]byte, error) {
	item, err := e.Item(context.Background(), o)
	if err != nil || revision == o.Revision() {
		return item, err
	}
	return e.AppendRevision(make([]byte, 0, len(item)+20), item, revision)
}
