package encoding

import (
	"bytes"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/invariants"
	"github.com/larder-io/larder/internal/registry/servedjson"
	"github.com/larder-io/larder/internal/registry/wire"
)

// Prebuilt is the cached object of a value that is about to be stored, without its revision. The zero
// Prebuilt is unknown: the cache then decodes the value.
type Prebuilt struct {
	// Plain says that the decoded object and the cached one have the same encoding.
	Plain bool

	config   cache.ObjectConfig   // Body has no revision or a wrong one, and may be part of the stored bytes
	document *servedjson.Document // the source of the body; nil if config has the body
}

// Known reports whether p is not the zero Prebuilt.
func (p *Prebuilt) Known() bool { return p.document != nil || p.config.Body != nil }

// Key returns the key of the object.
func (p *Prebuilt) Key() string { return p.config.Key }

// Prebuild returns the cached object of s, which decodes to obj. rest is the part of its key within the resource. The
// result is unknown if the object cannot be built before its value is stored.
func (c *Codec) Prebuild(rest string, s *Stored, obj runtime.Object) Prebuilt {
	f := Prebuilt{Plain: c.EncodesLosslessly(s.Data), config: cache.ObjectConfig{Key: rest}}
	build := c.prebuildDecoded
	if c.custom != nil {
		build = c.prebuildCustom
	}
	if rest == "" || !build(s, obj, &f) {
		return Prebuilt{}
	}
	return f
}

// PrebuildByRule is [Codec.Prebuild] without decoding s. The result is unknown unless the fingerprint of s has a rule.
func (c *Codec) PrebuildByRule(rest string, s *Stored) Prebuilt {
	if c.Decorate != nil || rest == "" {
		return Prebuilt{}
	}
	f := Prebuilt{Plain: true, config: cache.ObjectConfig{Key: rest}}
	if !c.rules.complete(s.Data, &f.config) {
		return Prebuilt{}
	}
	return f
}

// EncodesLosslessly reports whether canonical bytes have all information of stored data. JSON distinguishes an empty
// list from a missing one, but protobuf does not. For a custom resource, data must be in the Codec's version.
func (c *Codec) EncodesLosslessly(data []byte) bool {
	if c.custom != nil {
		return c.custom.stores(data)
	}
	return bytes.HasPrefix(data, []byte(wire.Magic))
}

func (c *Codec) prebuildDecoded(_ *Stored, obj runtime.Object, f *Prebuilt) bool {
	var err error
	if f.config.Labels, f.config.Fields, err = c.Attrs(obj); err != nil {
		return false
	}
	if c.Decorate != nil {
		decorated := obj.DeepCopyObject()
		c.Decorate(decorated)
		f.Plain = f.Plain && reflect.DeepEqual(obj, decorated)
		obj = decorated
	}
	f.config.Body, err = c.encode(obj)
	return err == nil
}

// prebuildCustom sets f for a custom resource, which is cached in the stored version. It fails if the object
// was written in another version.
func (c *Codec) prebuildCustom(s *Stored, obj runtime.Object, f *Prebuilt) bool {
	if !c.custom.stores(s.Data) {
		return false
	}
	if c.Decorate == nil {
		if f.document = s.document; f.document == nil {
			f.document = c.custom.read(s.Data)
		}
	}
	var err error
	if f.document != nil {
		f.config.Labels, f.config.Fields, err = c.custom.attrsOf(f.document)
		return err == nil
	}
	// Only an object that was decoded from s is changed here: if the write fails, the caller may
	// write its own object again.
	if c.SetRevision(obj, 1) != nil {
		return false
	}
	if f.config.Labels, f.config.Fields, err = c.custom.attrs(obj); err != nil {
		return false
	}
	f.config.Body, err = c.encode(obj)
	return err == nil
}

// Object makes the cached object of p, which c has built, after its value is stored at revision. stored is
// the size of the value. Object returns nil if it cannot make the object.
func (p *Prebuilt) Object(c *Codec, revision int64, stored int) *cache.Object {
	config := p.config
	config.Revision, config.StoredSize = revision, stored
	if p.document != nil {
		setDocument(&config, p.document)
		return cache.NewObject(config, c.Schema)
	}
	return c.objectAt(config, p.config.Body)
}

// objectAt makes an object from config, with the contents of body at config's revision. It returns nil if
// it cannot.
func (c *Codec) objectAt(config cache.ObjectConfig, body []byte) *cache.Object {
	var err error
	if config.Body, err = c.appendRevision(make([]byte, 0, len(body)+wire.MaxRevision), body, config.Revision); err != nil {
		return nil
	}
	if c.custom != nil {
		config.Head = wire.HeadJSON(config.Body)
	}
	return cache.NewObject(config, c.Schema)
}

// At returns o at another revision, for encoding only: it has no labels and fields. It returns nil if it
// cannot.
func (c *Codec) At(o *cache.Object, revision int64) *cache.Object {
	if o.Revision() == revision {
		return o
	}
	return c.objectAt(cache.ObjectConfig{Key: o.Key(), Revision: revision, StoredSize: int(o.StoredSize())}, o.Body())
}

// Encodes returns an error if the body of o is not the canonical encoding of obj.
func (c *Codec) Encodes(o *cache.Object, obj runtime.Object) error {
	body, err := c.encode(obj)
	if err == nil && !bytes.Equal(body, o.Body()) {
		err = fmt.Errorf("registry: %s is encoded as %q, not as %q", o.Key(), body, o.Body())
	}
	return err
}

// Stored is an object that is about to be stored.
type Stored struct {
	Data []byte

	// same is the object that Data decodes to, without a resourceVersion; nil if unknown.
	same runtime.Object

	// document is Data; nil if Data may not be in served form.
	document *servedjson.Document
}

// Store encodes obj for the store, as [Codec.EncodeStored] does. obj then belongs to the Stored, whose Decode
// may return it. size is the approximate size, 0 if it is unknown.
func (c *Codec) Store(obj runtime.Object, size int) (Stored, error) {
	if s, ok := c.storeCustom(obj, size); ok {
		return s, nil
	}
	data, err := c.EncodeStored(obj)
	if err == nil && c.custom != nil && c.custom.stores(data) {
		c.custom.storedIn.Store(true)
	}
	return Stored{Data: data}, err
}

// storeCustom is Store for a custom resource that is stored in its own version. It returns false for other
// objects.
func (c *Codec) storeCustom(obj runtime.Object, size int) (Stored, bool) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok || c.custom == nil || !c.custom.storedIn.Load() || c.Versioner().PrepareObjectForStorage(obj) != nil {
		return Stored{}, false
	}
	data, same, ok := servedjson.Encode(u.Object, size+512)
	if !ok || !c.custom.stores(data) {
		return Stored{}, false
	}
	s := Stored{Data: append(data, '\n')}
	if s.document = c.custom.read(s.Data); s.document != nil && same {
		s.same = obj
	}
	return s, true
}

// Decode returns the object that s decodes to, without a resourceVersion. It may decode into empty.
func (s *Stored) Decode(c *Codec, empty runtime.Object) (runtime.Object, error) {
	if s.same == nil || invariants.Enabled {
		if err := c.DecodeStored(s.Data, empty, 0); err != nil || s.same == nil {
			return empty, err
		}
		if !reflect.DeepEqual(s.same, empty) {
			panic(fmt.Sprintf("registry: %s is decoded as %v, not as %v", s.Data, empty, s.same))
		}
	}
	return s.same, nil
}

// StoresAs reports whether o, whose body is body, would be stored as s.
func (c *Codec) StoresAs(o *cache.Object, body []byte, s *Stored) bool {
	if s.document != nil {
		return bytes.Equal(body, s.document.AppendRevision(make([]byte, 0, len(body)), o.Revision()))
	}
	if raw, ok := c.cutEnvelope(s.Data); ok {
		plain, err := wire.AppendRevisionProtobuf(make([]byte, 0, len(body)), body, 0)
		return err == nil && bytes.Equal(raw, plain)
	}
	obj := c.New()
	if err := c.Decode(body, obj); err != nil {
		return false
	}
	before, err := c.EncodeStored(obj)
	return err == nil && bytes.Equal(s.Data, before)
}
