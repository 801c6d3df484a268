package transcode

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/larder-io/larder/internal/registry/jsontext"
)

var (
	// ErrUnsupported says that no plan can express a type.
	ErrUnsupported = errors.New("transcode: unsupported type")
	// ErrUnusual says that upstream's generated code would encode a message differently, or that its object has no
	// JSON. The object must be decoded.
	ErrUnusual = errors.New("transcode: unusual message")
)

// kind is the way in which one value is written.
type kind uint8

const (
	kindString kind = iota
	kindBytes
	kindBool
	kindInt32
	kindInt64
	kindMessage
	kindTime
	kindMicroTime
	kindQuantity
	kindIntOrString
	kindJSON
)

// cardinality distinguishes single values, lists and maps.
type cardinality uint8

const (
	single cardinality = iota
	list
	textMap // of strings to values
)

// Wire types of protobuf.
const (
	wireVarint = 0
	wireLen    = 2
)

// message is the plan of one struct.
type message struct {
	table  []entry // by field number
	fields []field // in the order of the JSON, with the fields of inlined structs
	always uint64  // fields that are written even if they are not in the message
	head   []byte  // members before the first, each with a comma before it
}

// maxFields limits the fields of a message: a uint64 has a bit for each.
const maxFields = 64

// entry describes a field number for the walk over a message.
type entry struct {
	slot     int8 // index in fields, none, or inlined
	wire     uint8
	repeated bool
	empty    bool    // it is written even if it is zero or empty in the message
	inline   []entry // of an inlined struct
}

const (
	none    = -1
	inlined = -2
)

// field describes how a field is written.
type field struct {
	name        []byte // `,"name":`
	absent      []byte // name and the zero value
	cardinality cardinality
	kind        kind
	of          *message // of messages
}

// Plan writes one kind of object.
type Plan struct{ root *message }

// Planner makes plans. Plans of kinds share the plans of common structs.
type Planner struct {
	typed []Typed

	mu       sync.Mutex
	messages map[reflect.Type]*message
}

// Typed names a field whose objects have kind and apiVersion in JSON, but not in protobuf: upstream's
// conversions add them.
type Typed struct {
	Owner reflect.Type
	Field string
	Kind  schema.GroupVersionKind
}

// NewPlanner returns a Planner for objects with these typed fields.
func NewPlanner(typed ...Typed) *Planner {
	return &Planner{typed: typed, messages: make(map[reflect.Type]*message)}
}

// Plan returns the plan of objects of type t, a struct, with kind and apiVersion of kind, unless that is empty. It
// fails with [ErrUnsupported].
func (p *Planner) Plan(t reflect.Type, kind schema.GroupVersionKind) (*Plan, error) {
	if t.Kind() != reflect.Struct {
		return nil, fmt.Errorf("%w: %s is not a struct", ErrUnsupported, t)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	m, err := p.messageLocked(t)
	if err != nil {
		return nil, err
	}
	return &Plan{root: m.of(kind)}, nil
}

// of returns m with kind and apiVersion in its head.
func (m *message) of(kind schema.GroupVersionKind) *message {
	if kind.Empty() {
		return m
	}
	typed := *m
	typed.head = append(typed.head, `,"kind":`...)
	typed.head = jsontext.AppendString(typed.head, kind.Kind)
	typed.head = append(typed.head, `,"apiVersion":`...)
	typed.head = jsontext.AppendString(typed.head, kind.GroupVersion().String())
	return &typed
}

// messageLocked plans a struct.
func (p *Planner) messageLocked(t reflect.Type) (*message, error) {
	if m, ok := p.messages[t]; ok {
		if m == nil {
			return nil, fmt.Errorf("%w: %s is part of itself", ErrUnsupported, t)
		}
		return m, nil
	}
	p.messages[t] = nil
	b := builder{planner: p, m: &message{}}
	table, err := b.structLocked(t)
	if err != nil {
		delete(p.messages, t)
		return nil, err
	}
	b.m.table = table
	p.messages[t] = b.m
	return b.m, nil
}

// builder gathers the fields of a struct and of those inlined in it.
type builder struct {
	planner *Planner
	m       *message
}

// structLocked adds the fields of t and returns their table.
func (b *builder) structLocked(t reflect.Type) ([]entry, error) {
	var table []entry
	for f := range t.Fields() {
		tag := f.Tag.Get("protobuf")
		if f.Type == reflect.TypeFor[metav1.TypeMeta]() && f.Anonymous && tag == "" {
			continue // always empty
		}
		number, err := fieldNumber(tag)
		if err != nil || !f.IsExported() {
			return nil, fmt.Errorf("%w: %s.%s: %w", ErrUnsupported, t, f.Name, err)
		}
		e, err := b.fieldLocked(t, f)
		if err != nil {
			return nil, fmt.Errorf("%w, in %s.%s", err, t, f.Name)
		}
		for len(table) <= number {
			table = append(table, entry{slot: none})
		}
		table[number] = e
	}
	return table, nil
}

// fieldNumber reads a tag like "bytes,1,opt,name=metadata".
func fieldNumber(tag string) (int, error) {
	parts := strings.SplitN(tag, ",", 3)
	if len(parts) < 2 {
		return 0, fmt.Errorf("no protobuf tag: %q", tag)
	}
	number, err := strconv.Atoi(parts[1])
	if err == nil && (number < 1 || number > 1<<12) {
		err = fmt.Errorf("field number %d", number)
	}
	return number, err
}

// fieldLocked adds one field, or the fields of an inlined struct.
func (b *builder) fieldLocked(owner reflect.Type, f reflect.StructField) (entry, error) {
	name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
	var omitEmpty, omitZero bool
	for option := range strings.SplitSeq(options, ",") {
		switch option {
		case "omitempty":
			omitEmpty = true
		case "omitzero":
			omitZero = true
		case "", "inline":
		default:
			return entry{}, fmt.Errorf("%w: option %q", ErrUnsupported, option)
		}
	}
	if f.Anonymous && name == "" {
		if f.Type.Kind() != reflect.Struct || marshalsJSON(f.Type) {
			return entry{}, fmt.Errorf("%w: %s is embedded", ErrUnsupported, f.Type)
		}
		table, err := b.structLocked(f.Type)
		return entry{slot: inlined, wire: wireLen, inline: table}, err
	}
	if name == "" || name == "-" {
		return entry{}, fmt.Errorf("%w: no name in JSON", ErrUnsupported)
	}
	return b.addLocked(owner, f, name, omitEmpty, omitZero)
}

func (b *builder) addLocked(owner reflect.Type, f reflect.StructField, name string, omitEmpty, omitZero bool) (entry, error) {
	slot := len(b.m.fields)
	if slot == maxFields {
		return entry{}, fmt.Errorf("%w: more than %d fields", ErrUnsupported, maxFields)
	}
	out, wire, err := b.planner.valueLocked(f.Type)
	if err != nil {
		return entry{}, err
	}
	zero, err := json.Marshal(reflect.Zero(f.Type).Interface())
	if err != nil {
		return entry{}, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	head := append(jsontext.AppendString([]byte{','}, name), ':')
	out.name, out.absent = head, slices.Concat(head, zero)
	for _, typed := range b.planner.typed {
		if typed.Owner == owner && typed.Field == f.Name && out.kind == kindMessage {
			out.of = out.of.of(typed.Kind)
		}
	}
	e := entry{slot: int8(slot), wire: wire, repeated: out.cardinality != single}
	omitted := omitEmpty && f.Type.Kind() != reflect.Struct // omitempty has no effect on structs
	if omitZero {
		if f.Type != reflect.TypeFor[metav1.Time]() {
			return entry{}, fmt.Errorf("%w: omitzero of %s", ErrUnsupported, f.Type)
		}
		omitted = true
	}
	if !omitted {
		b.m.always |= 1 << slot
	}
	switch f.Type.Kind() {
	case reflect.Pointer:
		e.empty = true
	case reflect.Slice:
		e.empty = out.kind == kindBytes && !omitted
	}
	b.m.fields = append(b.m.fields, out)
	return e, nil
}

// valueLocked returns how values of a field of type t are written, and their wire type.
func (p *Planner) valueLocked(t reflect.Type) (field, uint8, error) {
	switch {
	case t.Kind() == reflect.Pointer:
		return p.elementLocked(t.Elem())
	case t.Kind() == reflect.Map:
		if t.Key().Kind() != reflect.String || marshalsJSON(t) || marshalsText(t.Key()) {
			return field{}, 0, fmt.Errorf("%w: %s", ErrUnsupported, t)
		}
		out, _, err := p.elementLocked(t.Elem())
		out.cardinality = textMap
		return out, wireLen, err
	case t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8 && !isMessage(t):
		if marshalsJSON(t) {
			return field{}, 0, fmt.Errorf("%w: %s", ErrUnsupported, t)
		}
		out, wire, err := p.elementLocked(t.Elem())
		out.cardinality = list
		return out, wire, err
	default:
		return p.elementLocked(t)
	}
}

// elementLocked returns how one value of type t is written, and its wire type.
func (p *Planner) elementLocked(t reflect.Type) (field, uint8, error) {
	if k, ok := imitated[t]; ok {
		return field{kind: k}, wireLen, nil
	}
	if marshalsJSON(t) || marshalsText(t) {
		return field{}, 0, fmt.Errorf("%w: %s writes itself", ErrUnsupported, t)
	}
	switch t.Kind() {
	case reflect.String:
		return field{kind: kindString}, wireLen, nil
	case reflect.Bool:
		return field{kind: kindBool}, wireVarint, nil
	case reflect.Int32:
		return field{kind: kindInt32}, wireVarint, nil
	case reflect.Int64:
		return field{kind: kindInt64}, wireVarint, nil
	case reflect.Struct:
		if !isMessage(t) {
			break
		}
		m, err := p.messageLocked(t)
		return field{kind: kindMessage, of: m}, wireLen, err
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return field{kind: kindBytes}, wireLen, nil
		}
	}
	return field{}, 0, fmt.Errorf("%w: %s", ErrUnsupported, t)
}

// imitated are the types with a MarshalJSON that walker imitates.
var imitated = map[reflect.Type]kind{
	reflect.TypeFor[metav1.Time]():          kindTime,
	reflect.TypeFor[metav1.MicroTime]():     kindMicroTime,
	reflect.TypeFor[resource.Quantity]():    kindQuantity,
	reflect.TypeFor[intstr.IntOrString]():   kindIntOrString,
	reflect.TypeFor[metav1.FieldsV1]():      kindJSON,
	reflect.TypeFor[runtime.RawExtension](): kindJSON,
}

// marshalsJSON reports whether t, which is no pointer, or a pointer to t has a MarshalJSON method.
func marshalsJSON(t reflect.Type) bool {
	return reflect.PointerTo(t).Implements(reflect.TypeFor[json.Marshaler]())
}

// marshalsText is marshalsJSON for a MarshalText method.
func marshalsText(t reflect.Type) bool {
	return reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextMarshaler]())
}

// isMessage reports whether t is a message in protobuf.
func isMessage(t reflect.Type) bool {
	return reflect.PointerTo(t).Implements(reflect.TypeFor[interface{ Unmarshal([]byte) error }]())
}
