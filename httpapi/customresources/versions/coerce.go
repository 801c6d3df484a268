package versions

import (
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/crdserverscheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured/unstructuredscheme"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/runtime/serializer/versioning"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// coercer does for custom resources what decoding does for objects with a Go type. It removes unknown
// fields and forbidden nulls, and makes the metadata well-formed.
type coercer struct {
	kind    schema.GroupKind
	schemas Schemas

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
	// A schema need not name these fields, so pruning may have removed them.
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
	err := c.ObjectConvertor.Convert(in, out, context)
	if u, ok := out.(*unstructured.Unstructured); ok && err == nil {
		_, err = c.coercer.coerce(u, false)
	}
	return err
}

func (c converter) ConvertToVersion(in runtime.Object, gv runtime.GroupVersioner) (runtime.Object, error) {
	out, err := c.ObjectConvertor.ConvertToVersion(in, gv)
	if u, ok := out.(*unstructured.Unstructured); ok && err == nil {
		_, err = c.coercer.coerce(u, false)
	}
	return out, err
}

// types takes the place of a scheme for one version of a CRD. It has the types of custom resources and
// of the options of requests.
type types struct {
	options   *runtime.Scheme // of the options of requests alone
	typer     runtime.ObjectTyper
	creater   runtime.ObjectCreater
	defaulter defaulter
}

func (b *builder) typesOfVersion(v *apiextensionsv1.CustomResourceDefinitionVersion) *types {
	options, kind := runtime.NewScheme(), b.kind(v)
	options.AddUnversionedTypes(kind.GroupVersion(), &metav1.ListOptions{}, &metav1.GetOptions{}, &metav1.DeleteOptions{})
	return &types{
		options:   options,
		typer:     apiextensionsserver.UnstructuredObjectTyper{Delegate: options, UnstructuredTyper: crdserverscheme.NewUnstructuredObjectTyper()},
		creater:   unstructuredscheme.NewUnstructuredCreator(),
		defaulter: defaulter{options, b.Schemas, kind.GroupKind()},
	}
}

// defaulter sets the defaults of structural schemas in objects of one kind. It leaves all others
// to another defaulter.
type defaulter struct {
	runtime.ObjectDefaulter
	schemas Schemas
	kind    schema.GroupKind
}

func (d defaulter) Default(in runtime.Object) {
	u, ok := in.(runtime.Unstructured)
	kind := in.GetObjectKind().GroupVersionKind()
	if !ok || kind.GroupKind() != d.kind {
		d.ObjectDefaulter.Default(in)
		return
	}
	defaulting.Default(u.UnstructuredContent(), d.schemas[kind.Version])
}

// serializer decodes the bodies of requests and encodes responses.
type serializer struct {
	media     []runtime.SerializerInfo
	coercer   *coercer
	converter runtime.ObjectConvertor
	defaulter defaulter
}

var _ runtime.NegotiatedSerializer = (*serializer)(nil)

// serializer returns the serializer of one version.
func (b *builder) serializer(t *types) *serializer {
	scheme := t.defaulter
	scheme.ObjectDefaulter = apiextensionsserver.Scheme
	return &serializer{
		media: mediaTypes(t), converter: b.safe, defaulter: scheme, coercer: b.coercer(),
	}
}

func (b *builder) coercer() *coercer {
	kind := schema.GroupKind{Group: b.CRD.Spec.Group, Kind: b.CRD.Status.AcceptedNames.Kind}
	return &coercer{kind: kind, schemas: b.Schemas, preserves: b.CRD.Spec.PreserveUnknownFields}
}

func (s *serializer) SupportedMediaTypes() []runtime.SerializerInfo { return s.media }

func (s *serializer) EncoderForVersion(encoder runtime.Encoder, gv runtime.GroupVersioner) runtime.Encoder {
	scheme := apiextensionsserver.Scheme
	return versioning.NewCodec(encoder, nil, s.converter, scheme, scheme, scheme, gv, nil, "customResources")
}

func (s *serializer) DecoderToVersion(inner runtime.Decoder, gv runtime.GroupVersioner) runtime.Decoder {
	text, ok := inner.(*json.Serializer)
	scheme := apiextensionsserver.Scheme
	return versioning.NewCodec(nil, decoder{inner, s.coercer, ok && text.IsStrict()}, runtime.UnsafeObjectConvertor(scheme), scheme, scheme, s.defaulter, nil, gv, "customResources")
}

// mediaTypes lists the media types. Custom resources have no protobuf encoding, but other responses do, such as their
// metadata.
func mediaTypes(t *types) []runtime.SerializerInfo {
	streams := utilfeature.DefaultFeatureGate.Enabled(features.StreamingCollectionEncodingToJSON)
	text := func(o json.SerializerOptions) *json.Serializer {
		return json.NewSerializerWithOptions(json.DefaultMetaFactory, t.creater, t.typer, o)
	}
	list := []runtime.SerializerInfo{
		{
			MediaType: runtime.ContentTypeJSON, MediaTypeType: "application", MediaTypeSubType: "json", EncodesAsText: true,
			Serializer:       text(json.SerializerOptions{StreamingCollectionsEncoding: streams}),
			PrettySerializer: text(json.SerializerOptions{Pretty: true}),
			StrictSerializer: text(json.SerializerOptions{Strict: true, StreamingCollectionsEncoding: streams}),
			StreamSerializer: &runtime.StreamSerializerInfo{EncodesAsText: true, Serializer: text(json.SerializerOptions{}), Framer: json.Framer},
		},
		{
			MediaType: runtime.ContentTypeYAML, MediaTypeType: "application", MediaTypeSubType: "yaml", EncodesAsText: true,
			Serializer:       text(json.SerializerOptions{Yaml: true}),
			StrictSerializer: text(json.SerializerOptions{Yaml: true, Strict: true}),
		},
		{
			MediaType: runtime.ContentTypeProtobuf, MediaTypeType: "application", MediaTypeSubType: "vnd.kubernetes.protobuf",
			Serializer: protobuf.NewSerializerWithOptions(t.creater, t.typer, protobuf.SerializerOptions{
				StreamingCollectionsEncoding: utilfeature.DefaultFeatureGate.Enabled(features.StreamingCollectionEncodingToProtobuf),
			}),
			StreamSerializer: &runtime.StreamSerializerInfo{Serializer: protobuf.NewRawSerializer(t.creater, t.typer), Framer: protobuf.LengthDelimitedFramer},
		},
	}
	if utilfeature.DefaultFeatureGate.Enabled(features.CBORServingAndStorage) {
		list = append(list, cbor.NewSerializerInfo(t.creater, t.typer))
	}
	return list
}
