package cache

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Index declares an exact-match index. Exactly one of its fields is set.
type Index struct {
	// Field is the name of a selectable field. As in selectors, an object without the field has the empty value.
	Field string
	// Label is the key of a label. Objects without it are not in the index.
	Label string
}

// Name returns the field or label of the index.
func (ix Index) Name() string {
	if ix.Field != "" {
		return ix.Field
	}
	return ix.Label
}

// value returns the value of the index for o, and whether o is in the index.
func (ix Index) value(o *Object) (string, bool) {
	if ix.Field != "" {
		return o.field(ix.Field), true
	}
	return o.label(ix.Label)
}

// ResourceSchema has the data that the objects of one resource share: names of selectable fields,
// indexes, and the sizes of secondary encodings. It is safe for concurrent use.
type ResourceSchema struct {
	name    string
	indexes []Index
	budget  *Budget
	// identify finds the identity in an object's head; nil means that the key is the identity.
	identify  func(head []byte) []byte
	encodings atomic.Int64 // bytes kept in secondary encodings
	frames    atomic.Int64 // bytes kept in frames of events

	pressure struct{ encodings, frames, events, refused atomic.Int64 } // see Pressure

	fields atomic.Pointer[[]string] // never changed in place

	mu sync.Mutex // serializes additions to fields
}

// NewResourceSchema returns the ResourceSchema of a resource. Any number of schemas may share the budget; nil means no
// limit.
func NewResourceSchema(name string, budget *Budget, indexes ...Index) *ResourceSchema {
	if budget == nil {
		budget = NewBudget(0)
	}
	s := &ResourceSchema{name: name, indexes: slices.Clone(indexes), budget: budget}
	s.fields.Store(&[]string{})
	return s
}

// IdentifyBy sets the function that finds an object's identity in its [Object.Head], for
// [Shard]s. It must be called before the schema has objects.
func (s *ResourceSchema) IdentifyBy(identify func(head []byte) []byte) { s.identify = identify }

// Budget returns the Budget of the secondary encodings.
func (s *ResourceSchema) Budget() *Budget { return s.budget }

// EncodingBytes returns the number of bytes kept in all secondary encodings.
func (s *ResourceSchema) EncodingBytes() int64 { return s.encodings.Load() }

// FrameBytes returns the number of bytes kept in frames of events.
func (s *ResourceSchema) FrameBytes() int64 { return s.frames.Load() }

// Pressure counts what a resource has lost to the limits of its Budget since the start.
type Pressure struct {
	// Encodings, Frames and Events count what was dropped early. Events are those of the Log.
	Encodings, Frames, Events int64
	// Refused counts encodings that were made and not kept.
	Refused int64
}

// Pressure returns the counts.
func (s *ResourceSchema) Pressure() Pressure {
	p := &s.pressure
	return Pressure{p.encodings.Load(), p.frames.Load(), p.events.Load(), p.refused.Load()}
}

// CountRefused counts an encoding that was not kept because there was no room. A caller that made an encoding itself
// because [Budget.MakeRoom] returned false must call it.
func (s *ResourceSchema) CountRefused() { s.pressure.refused.Add(1) }

// fieldIndex returns the position of a field in every object's packed values, or -1.
func (s *ResourceSchema) fieldIndex(name string) int {
	return slices.Index(*s.fields.Load(), name)
}

// learnField is fieldIndex that adds the name when it is new. Names are only
// ever appended, so objects packed earlier stay readable.
func (s *ResourceSchema) learnField(name string) int {
	if i := s.fieldIndex(name); i >= 0 {
		return i
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	names := *s.fields.Load()
	if i := slices.Index(names, name); i >= 0 {
		return i
	}
	grown := append(slices.Clone(names), name)
	s.fields.Store(&grown)
	return len(names)
}
