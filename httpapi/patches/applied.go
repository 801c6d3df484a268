package patches

import (
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// Applied decodes an applied configuration: YAML or, if kind says so, CBOR.
func Applied(kind types.PatchType, data []byte) (map[string]any, error) {
	configuration := make(map[string]any)
	if kind == types.ApplyCBORPatchType {
		return configuration, direct.Unmarshal(data, &configuration)
	}
	return configuration, yaml.Unmarshal(data, &configuration)
}

// CheckApplied returns an error if an applied configuration has duplicate fields. Decoding YAML a second
// time is a quarter of the work of applying a large object, so CheckApplied first looks whether the
// configuration is JSON without duplicates. [Applied] already refuses duplicates in CBOR.
func CheckApplied(kind types.PatchType, data []byte) error {
	if kind == types.ApplyCBORPatchType || isClean(data) {
		return nil
	}
	return yaml.UnmarshalStrict(data, &map[string]any{})
}
