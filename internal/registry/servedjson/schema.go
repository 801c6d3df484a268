package servedjson

import (
	"bytes"
	"cmp"
	"slices"

	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/internal/registry/jsontext"
)

// Schema describes the served form of objects of one version of a custom resource. It is immutable.
type Schema struct {
	head string // apiVersion and kind, as values
	kind string
	root *node
}

// node describes a value.
type node struct {
	properties []property // sorted by name
	others     *node      // node of members that are no properties; nil if they would be pruned
	items      *node
	nullable   bool // null stays null
}

type property struct {
	name string
	node *node
	// required says that the member has a default, and would be added if it were missing.
	required bool
}

// New returns the Schema of a version. s is its structural schema, with pruned defaults. New returns nil
// if objects must be decoded: if s embeds resources, has defaults for metadata, or has
// additionalProperties at its root.
func New(s *structuralschema.Structural, kind schema.GroupVersionKind) *Schema {
	if s == nil || s.AdditionalProperties != nil {
		return nil
	}
	m := &maker{}
	own := *s
	own.XEmbeddedResource = false // the root is one, but the walker checks its metadata
	// Metadata have no other properties than name and generateName: pkg/apiserver/schema/validation.go.
	for _, p := range s.Properties["metadata"].Properties {
		if p.Default.Object != nil {
			return nil
		}
	}
	root := m.node(&own, false)
	if m.embeds {
		return nil
	}
	for _, name := range []string{"apiVersion", "kind", "metadata"} {
		root.properties = slices.DeleteFunc(root.properties, func(p property) bool { return p.name == name })
	}
	return &Schema{head: quoted(kind.GroupVersion().String()), kind: quoted(kind.Kind), root: root}
}

func quoted(s string) string { return string(jsontext.AppendString(nil, s)) }

// maker makes the nodes of a schema.
type maker struct{ embeds bool }

// anything returns the node of values that reading never changes.
func anything() *node {
	n := &node{nullable: true}
	n.others, n.items = n, n
	return n
}

// node returns the node of values of s. kept says that the values are items of a list that is not pruned
// (upstream's pruning/algorithm.go, skipPrune).
func (m *maker) node(s *structuralschema.Structural, kept bool) *node {
	switch {
	case s == nil && kept:
		return anything()
	case s == nil: // members are pruned
		n := &node{nullable: true}
		n.items = n
		return n
	case s.XEmbeddedResource:
		m.embeds = true
	}
	kept = kept || s.XPreserveUnknownFields
	n := &node{nullable: s.Nullable, items: m.node(s.Items, kept)}
	for name := range s.Properties {
		p := s.Properties[name]
		n.properties = append(n.properties, property{name: name, node: m.node(&p, false), required: p.Default.Object != nil})
	}
	slices.SortFunc(n.properties, func(a, b property) int { return cmp.Compare(a.name, b.name) })
	switch {
	case s.AdditionalProperties != nil:
		n.others = m.node(s.AdditionalProperties.Structural, false)
	case kept:
		n.others = anything()
	}
	return n
}

// Document is an object in served form.
type Document struct {
	data []byte // up to the end of the object
	// revision is the resourceVersion without its quotes, or the empty span where it would be
	// inserted. Then before and after are the texts around it.
	revision      span
	before, after string
	labels        span // of the value; empty if there are none
	// name and namespace are strings with their quotes; empty if there are none.
	name, namespace span
}

type span struct{ from, to int }

func (s span) of(data []byte) []byte { return data[s.from:s.to:s.to] }

// Read walks data, an object with or without a resourceVersion. It returns nil if decoding, pruning and defaulting
// would, or might, change the object, and if s is nil. The Document refers to data.
func (s *Schema) Read(data []byte) *Document {
	data = bytes.TrimSuffix(data, []byte("\n"))
	d, w := &Document{data: data}, walker{data: data}
	if s == nil || !w.root(s, d) || w.at != len(data) {
		return nil
	}
	return d
}
