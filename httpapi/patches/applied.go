package patches

import (
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// Applied reads an applied configuration of kind, which is YAML or CBOR.
func Applied(kind types.PatchType, data []byte) (map[string]any, error) {
	configuration := make(map[string]any)
	if kind == types.ApplyCBORPatchType {
		return configuration, direct.Unmarshal(data, &configuration)
	}
	return configuration, yaml.Unmarshal(data, &configuration)
}

// CheckApplied returns what a strict reader finds wrong in an applied configuration that [Applied] has
// read: members that come twice. Reading YAML once more is a quarter of the work for a large object,
// and is spared where the configuration is plain JSON. CBOR never has a member twice.
func CheckApplied(kind types.PatchType, data []byte) error {
	if kind == types.ApplyCBORPatchType || isClean(data) {
		return nil
	}
	return yaml.UnmarshalStrict(data, &map[string]any{})
}
