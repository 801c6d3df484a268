package encoding

import (
	"k8s.io/apiserver/pkg/storage"
)

// customCodec is the part of a [Codec] that only custom resources have. Their objects have
// no Go type: the canonical encoding is JSON, in the version that is stored, and is decoded
// by the same code as a stored value.
type customCodec struct {
	// head is the start of stored or canonical bytes of an object of the Codec's version; nil
	// in the Codec of the whole resource. Bytes that begin otherwise may have the version,
	// too.
	head []byte

	// onlyVersion says that the CRD has no other version.
	onlyVersion bool

	// converts says that a webhook converts, which may change labels and fields: those in
	// the cache are of the stored version.
	converts bool

	// attrs finds the labels and all fields by which some version selects.
	attrs storage.AttrFunc
}

// stores reports whether data, stored or canonical, has the version of the Codec. It may
// report false for data that has: a conversion then changes nothing.
func (c *customCodec) stores(data []byte) bool {
	return len(c.head) > 0 && len(data) > len(c.head) && string(data[:len(c.head)]) == string(c.head)
}
