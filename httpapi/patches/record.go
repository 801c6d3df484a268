package patches

import (
	"bytes"

	"k8s.io/apimachinery/pkg/types"
)

// IgnoresManagedFields reports whether the patch is a merge patch that does not name managedFields.
func (p *Patch) IgnoresManagedFields() bool {
	return p.Kind != types.JSONPatchType && !namesManagedFields(p.Data)
}

// namesManagedFields reports whether JSON may contain managedFields, perhaps escaped.
func namesManagedFields(data []byte) bool {
	return bytes.Contains(bytes.ToLower(data), []byte("managedfields")) || bytes.Contains(data, []byte(`\u`))
}
