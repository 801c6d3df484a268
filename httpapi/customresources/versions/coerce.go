package versions

import (
	"fmt"

	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// coercer does for custom resources what decoding does for objects with a Go type. It removes unknown
// fields and forbidden nulls, and makes the metadata well-formed.
type coercer struct {
	kind    schema.GroupKind
	schemas map[string]*structuralschema.Structural // by version

	// preserves says that the CRD keeps unknown fields.
	preserves bool

	// stored says that objects come from the store. Then malformed metadata is removed, and objects
	// without a generation get generation 1. Otherwise malformed metadata is an error.
	stored bool
}

// coerce changes u. If report is set, it returns the paths of the fields that it removes. For other kinds,
// the options of requests, it changes only the metadata.
func (c *coercer) coerce(u *unstructured.Unstructured, report bool) ([]string, error) {
	kind, hasKind, err := unstructured.NestedString(u.UnstructuredContent(), "kind")
	if err != nil {
		return nil, err
	}
	apiVersion, hasVersion, err := unstructured.NestedString(u.UnstructuredContent(), "apiVersion")
	if err != nil {
		return nil, err
	}
	metadata, hasMetadata, removed, err := objectmeta.GetObjectMetaWithOptions(u.Object, objectmeta.ObjectMetaOptions{DropMalformedFields: c.stored, ReturnUnknownFieldPaths: report})
	if err != nil {
		return nil, err
	}
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return nil, err
	}
	if gv.WithKind(kind).GroupKind() == c.kind {
		more, err := c.content(u.Object, c.schemas[gv.Version], report)
		if err != nil {
			return nil, err
		}
		removed = append(removed, more...)
		if c.stored && hasMetadata && metadata.Generation == 0 {
			metadata.Generation = 1
		}
	}
	// No schema needs to name these, so that they may have been removed.
	if hasKind {
		u.SetKind(kind)
	}
	if hasVersion {
		u.SetAPIVersion(apiVersion)
	}
	if hasMetadata {
		err = objectmeta.SetObjectMeta(u.Object, metadata)
	}
	return removed, err
}

// content coerces the part of an object that a schema describes.
func (c *coercer) content(object map[string]any, s *structuralschema.Structural, report bool) (removed []string, err error) {
	if !c.preserves {
		removed = pruning.PruneWithOptions(object, s, true, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: report})
		defaulting.PruneNonNullableNullsWithoutDefaults(object, s)
	}
	fieldError, more := objectmeta.CoerceWithOptions(nil, object, s, false, objectmeta.CoerceOptions{DropInvalidFields: c.stored, ReturnUnknownFieldPaths: report})
	if fieldError != nil {
		return nil, fieldError
	}
	return append(removed, more...), nil
}

// decoder is a decoder whose custom resources are coerced.
type decoder struct {
	runtime.Decoder
	coercer *coercer
	strict  bool // unknown fields are errors
}

func (d decoder) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	obj, gvk, err := d.Decoder.Decode(data, defaults, into)
	var found []error
	if err != nil {
		strict, ok := runtime.AsStrictDecodingError(err)
		if !ok || obj == nil {
			return nil, gvk, err
		}
		found = strict.Errors()
	}
	if u, ok := obj.(*unstructured.Unstructured); ok {
		unknown, err := d.coercer.coerce(u, d.strict)
		if err != nil {
			return nil, gvk, err
		}
		for _, path := range unknown {
			found = append(found, fmt.Errorf(`unknown field "%s"`, path))
		}
	}
	if d.strict && len(found) > 0 {
		return obj, gvk, runtime.NewStrictDecodingError(found)
	}
	return obj, gvk, nil
}

// converter coerces the results of another converter, because webhooks may return anything.
type converter struct {
	runtime.ObjectConvertor
	coercer *coercer
}

func (c converter) Convert(in, out, context any) error {
	if err := c.ObjectConvertor.Convert(in, out, context); err != nil {
		return err
	}
	if u, ok := out.(*unstructured.Unstructured); ok {
		_, err := c.coercer.coerce(u, false)
		return err
	}
	return nil
}

func (c converter) ConvertToVersion(in runtime.Object, gv runtime.GroupVersioner) (runtime.Object, error) {
	out, err := c.ObjectConvertor.ConvertToVersion(in, gv)
	if err != nil {
		return nil, err
	}
	if u, ok := out.(*unstructured.Unstructured); ok {
		if _, err := c.coercer.coerce(u, false); err != nil {
			return nil, err
		}
	}
	return out, nil
}
