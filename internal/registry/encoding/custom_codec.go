package encoding

import (
	"k8s.io/apiserver/pkg/storage"
)

// customCodec is what a [Codec] knows of a resource of a CRD. Its objects have no Go type:
// the canonical encoding is JSON, in the version that is stored, and decoding it is what
// reading a stored value is.
type customCodec struct {
	// head is what the bytes of an object begin with, stored or canonical, that has the
	// version of this Codec; nil in the Codec of the whole resource. Bytes that begin with
	// something else may have the version even so.
	head []byte

	// alone says that the CRD has no other version.
	alone bool

	// converts says that labels and fields may change where the version does: those that
	// the cache has are of what is stored.
	converts bool

	// attrs finds the labels and all fields by which some version selects.
	attrs storage.AttrFunc
}

// stores reports whether data, stored or canonical, has the version of the Codec. It may
// say no of data that has: that is then converted to the version it has already.
func (c *customCodec) stores(data []byte) bool {
	return len(c.head) > 0 && len(data) > len(c.head) && string(data[:len(c.head)]) == string(c.head)
}
