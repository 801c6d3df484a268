package encoding

import (
	"sync/atomic"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/larder-io/larder/internal/registry/servedjson"
)

// customCodec is the part of a [Codec] that only custom resources have. Their objects have
// no Go type: the canonical encoding is JSON, in the version that is stored, and is decoded
// by the same code as a stored value.
type customCodec struct {
	// head is the start of stored or canonical bytes of an object of the Codec's version; nil
	// in the Codec of the whole resource. Bytes that begin otherwise may have the version,
	// too.
	head []byte

	// storedIn says that objects are stored in the Codec's version, as an encoding by upstream's
	// codec has shown.
	storedIn atomic.Bool

	// onlyVersion says that the CRD has no other version.
	onlyVersion bool

	// converts says that a webhook converts, which may change labels and fields. The cache has those
	// of the stored version.
	converts bool

	// served has the encoders of the Codec's version; nil if it is not served.
	served *Version

	// attrs finds the labels and all fields by which some version selects.
	attrs storage.AttrFunc

	// schemas are the schemas of the versions that need no conversion to the Codec's. selects says that
	// attrs reads more than the metadata.
	schemas func() []*servedjson.Schema
	selects bool
}

// read returns data, stored or canonical, as a Document if it is in served form.
func (c *customCodec) read(data []byte) (servedjson.Document, bool) {
	for _, s := range c.schemas() {
		if d, ok := s.Read(data); ok {
			return d, true
		}
	}
	return servedjson.Document{}, false
}

// attrsOf returns what attrs finds in d.
func (c *customCodec) attrsOf(d *servedjson.Document) (labels.Set, fields.Set, error) {
	if c.selects {
		return c.attrs(&unstructured.Unstructured{Object: d.Content()})
	}
	found := &unstructured.Unstructured{Object: make(map[string]any, 1)}
	found.SetName(d.Name())
	found.SetNamespace(d.Namespace())
	found.SetLabels(d.Labels())
	return c.attrs(found)
}

// decode decodes data, stored or canonical, into an object of the Codec's version, if data needs no
// pruning, defaults or conversion.
func (c *customCodec) decode(data []byte, into runtime.Object) bool {
	u, ok := into.(*unstructured.Unstructured)
	if !ok {
		return false
	}
	d, ok := c.read(data)
	if ok {
		u.Object = d.Content()
	}
	return ok
}

// stores reports whether data, stored or canonical, has the version of the Codec. It may
// report false for data that has: a conversion then changes nothing.
func (c *customCodec) stores(data []byte) bool {
	return len(c.head) > 0 && len(data) > len(c.head) && string(data[:len(c.head)]) == string(c.head)
}
