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

// Stored is an object that is about to be stored.
type Stored struct {
	Data []byte

	// same is what Data decodes to, without a resourceVersion; nil if it is not known.
	same runtime.Object

	// document is Data, if reading it would change nothing, as known says.
	document servedjson.Document
	known    bool
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
	if !ok || c.custom == nil || !c.custom.storedIn.Load() || c.versioner.PrepareObjectForStorage(obj) != nil {
		return Stored{}, false
	}
	encoded, ok := servedjson.Encode(u.Object, size+512)
	if !ok || !c.custom.stores(encoded.Data) {
		return Stored{}, false
	}
	s := Stored{Data: append(encoded.Data, '\n')}
	if s.document, s.known = c.custom.read(s.Data); s.known && encoded.Same {
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
	if s.known {
		return s.document.Equals(body, o.Revision())
	}
	raw, apiVersion, kind, ok := wire.Unenvelope(s.Data)
	if ok && apiVersion == c.canonical.GroupVersion().String() && kind == c.canonical.Kind {
		plain, err := wire.AppendRevisionProtobuf(make([]byte, 0, len(body)), body, 0)
		return err == nil && bytes.Equal(raw, plain)
	}
	obj := c.newFunc()
	if err := c.Decode(body, obj); err != nil {
		return false
	}
	before, err := c.EncodeStored(obj)
	return err == nil && bytes.Equal(s.Data, before)
}
