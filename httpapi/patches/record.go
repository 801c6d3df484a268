package patches

import (
	"bytes"

	"k8s.io/apimachinery/pkg/types"
)

// IgnoresManagedFields reports whether the patch does the same to an object without managedFields: a
// merge patch, strategic or not, that does not name them.
func (p *Patch) IgnoresManagedFields() bool {
	return p.Kind != types.JSONPatchType && !namesManagedFields(p.Data)
}

// namesManagedFields reports whether JSON may have managedFields in it. What is escaped may be that.
func namesManagedFields(data []byte) bool {
	return bytes.Contains(bytes.ToLower(data), []byte("managedfields")) || bytes.Contains(data, []byte(`\u`))
}
