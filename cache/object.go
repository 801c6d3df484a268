package cache

import (
	"bytes"
	"strings"
	"unique"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/larder-io/larder/internal/invariants"
)

// EncodingID numbers the encodings of one resource. The code that makes the encodings defines the numbers; 0 is the
// canonical one.
type EncodingID uint16

// Object is one stored value at one revision, encoded and ready to serve. It is
// immutable; all methods are safe for concurrent use.
//
// Implementation: an object costs one allocation for the struct, one that holds
// both key and field values, and its body. Label sets are shared among objects. Large bodies
// may be packed (packed.go).
type Object struct {
	seal invariants.Seal // of body
	body []byte
	// meta is the key, cells.extra bytes long, then the values of fields as
	// packFields packs them, then the size of the stored value.
	// Invariant: cells.extra + sizeWidth <= len(meta)
	meta     string
	labels   unique.Handle[string] // packed by packLabels; zero in a corrupt object
	schema   *ResourceSchema
	optional *optional // nil for nearly all objects
	revision int64
	cells    cells
}

// sizeWidth is how many bytes the size of a stored value takes.
const sizeWidth = 4

// ObjectConfig has the properties of a new Object.
type ObjectConfig struct {
	// Key is "namespace/name" or "name": the stored key without the resource's
	// prefix. Keys order objects bytewise.
	Key string
	// Revision is the store's revision of the write that made this state.
	Revision int64
	// Body is the canonical encoding. NewObject takes ownership of it, unless the Object is Packed.
	Body []byte
	// Head, if not nil, allows the Object to keep a large Body packed. It is copied and kept unpacked, for
	// readers that do not need the rest.
	Head []byte
	// Labels and Fields are for selectors. They are copied.
	Labels map[string]string
	Fields fields.Set
	// StoredSize is the size of the value in the store, in bytes.
	StoredSize int
	// Err marks the object as corrupt: the stored value cannot be decoded.
	Err error
}

// NewObject makes an Object of the schema's resource.
func NewObject(config ObjectConfig, schema *ResourceSchema) *Object {
	o := &Object{schema: schema, revision: config.Revision}
	o.setKey(config.Key)
	if invariants.Enabled {
		invariants.Assertf(config.Key != "", "cache: object without a key")
	}
	var space [512]byte
	meta := append(space[:0], config.Key...)
	if config.Err != nil {
		o.meta = string(packSize(meta, config.StoredSize))
		o.optional = &optional{err: config.Err}
		return o
	}
	if config.Head != nil && len(config.Body) >= packFrom {
		if o.body = pack(config.Head, config.Body); o.body != nil {
			o.optional = &optional{head: len(config.Head), size: len(config.Body)}
		}
	}
	if o.body == nil {
		o.body, _ = trim(config.Body)
	}
	o.seal = invariants.SealOf(o.body)
	o.meta = string(packSize(packFields(meta, config.Fields, o), config.StoredSize))
	o.labels = unique.Make(string(packLabels(space[:0], config.Labels)))
	if schema.identify != nil {
		o.cells.setHash(ByIdentity.hash(o))
	}
	return o
}

// trim returns body without much spare capacity, and the memory that it takes. Buffers that grew by doubling have up to
// twice the memory that they need.
func trim(body []byte) ([]byte, uint32) {
	if spare := cap(body) - len(body); spare > len(body)/8+16 {
		body = bytes.Clone(body)
	}
	return body[:len(body):len(body)], uint32(cap(body))
}

func (o *Object) setKey(key string) { o.meta, o.cells.extra = key, uint32(len(key)) }

// Key returns the object's key relative to its resource.
func (o *Object) Key() string { return o.meta[:o.cells.extra] }

// Namespace returns the part of the key before the last slash, or "".
func (o *Object) Namespace() string {
	key := o.Key()
	return key[:max(strings.LastIndexByte(key, '/'), 0)]
}

// Name returns the part of the key after the last slash.
func (o *Object) Name() string {
	key := o.Key()
	return key[strings.LastIndexByte(key, '/')+1:]
}

// Revision returns the store's revision of the write that made this state.
func (o *Object) Revision() int64 { return o.revision }

// Body returns the canonical encoding, which is shared and must not be written to. If the object is
// Packed, each call unpacks it.
func (o *Object) Body() []byte {
	if o.Packed() {
		return o.AppendBody(nil)
	}
	o.seal.Check(o.body, "cache: the body of an object")
	return o.body
}

// retire drops the data derived from an object that leaves the cache.
func (o *Object) retire() {
	o.seal.Check(o.body, "cache: the body of an object that leaves")
	o.cells.retire(o.schema.budget)
}

// Err returns the reason why the object is corrupt, nil if it is not. A corrupt
// object has no body, labels or fields.
func (o *Object) Err() error {
	if o.optional == nil {
		return nil
	}
	return o.optional.err
}

// StoredSize returns the size of the object's value in the store, in bytes.
func (o *Object) StoredSize() int64 {
	packed := o.meta[len(o.meta)-sizeWidth:] // by packSize
	return int64(uint32(packed[0]) | uint32(packed[1])<<8 | uint32(packed[2])<<16 | uint32(packed[3])<<24)
}

// Equal reports whether o and another object of the resource have the same key, revision, body,
// labels, fields and error.
func (o *Object) Equal(other *Object) bool {
	if mine, others := o.Err(), other.Err(); (mine == nil) != (others == nil) || mine != nil && mine.Error() != others.Error() {
		return false
	}
	if o.Packed() != other.Packed() || o.Packed() && (o.optional.size != other.optional.size || o.optional.head != other.optional.head) {
		return false
	}
	return o.revision == other.revision && o.Key() == other.Key() && o.meta == other.meta && o.labels == other.labels && bytes.Equal(o.body, other.body)
}

// Labels returns the object's labels, without an allocation.
func (o *Object) Labels() labels.Labels { return (*objectLabels)(o) }

// Fields returns the object's selectable fields, without an allocation.
// "metadata.name" and "metadata.namespace" are always among them.
func (o *Object) Fields() fields.Fields { return (*objectFields)(o) }

// Encoding returns a secondary encoding, made by encode unless it is kept. Concurrent callers share one call of encode.
// The bytes are shared and must not be written to. Errors are not kept. encode may request other encodings of the
// object, but the requests must not form a cycle.
func (o *Object) Encoding(id EncodingID, encode func(*Object) ([]byte, error)) ([]byte, error) {
	return o.encoding(id, account{schema: o.schema}, encode)
}

// ExpensiveEncoding is Encoding for encodings that are expensive to make but small. Other encodings
// are dropped for them, even those in use.
func (o *Object) ExpensiveEncoding(id EncodingID, encode func(*Object) ([]byte, error)) ([]byte, error) {
	return o.encoding(id, account{schema: o.schema, urgent: true}, encode)
}

func (o *Object) encoding(id EncodingID, a account, encode func(*Object) ([]byte, error)) ([]byte, error) {
	if b, ok := o.cells.find(uint32(id), o.schema.budget); ok {
		return b, nil
	}
	return o.cells.fill(uint32(id), a, func() ([]byte, error) { return encode(o) })
}

func (o *Object) field(name string) string {
	v, _ := o.lookupField(name)
	return v
}

func (o *Object) label(key string) (string, bool) {
	if o.labels == (unique.Handle[string]{}) {
		return "", false
	}
	return lookupLabel(o.labels.Value(), key)
}

func (o *Object) lookupField(name string) (string, bool) {
	if i := o.schema.fieldIndex(name); i >= 0 {
		if v, ok := lookupField(o.meta[o.cells.extra:len(o.meta)-sizeWidth], i); ok {
			return v, true
		}
	}
	return o.derivedField(name)
}

// derivedField returns a field that is part of the key.
func (o *Object) derivedField(name string) (string, bool) {
	switch name {
	case "metadata.name":
		return o.Name(), true
	case "metadata.namespace":
		return o.Namespace(), true
	}
	return "", false
}
