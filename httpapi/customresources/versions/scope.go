package versions

import (
	"maps"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	openapibuilder "k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource/tableconvertor"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	upstreamserializer "k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/util/managedfields"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/scale"
	"k8s.io/client-go/scale/scheme/autoscalingv1"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// scope returns the scope of the resource itself in one version, without its field manager.
func (b *builder) scope(v *apiextensionsv1.CustomResourceDefinitionVersion, t *types, storage customresource.CustomResourceStorage) *handlers.RequestScope {
	kind, serializer := b.kind(v), b.serializer(t)
	return &handlers.RequestScope{
		Namer:      handlers.ContextBasedNaming{Namer: runtime.Namer(meta.NewAccessor()), ClusterScoped: !b.namespaced()},
		Serializer: serializer,
		StandardSerializers: slices.DeleteFunc(slices.Clone(serializer.media), func(info runtime.SerializerInfo) bool {
			return info.MediaType == runtime.ContentTypeProtobuf
		}),
		ParameterCodec: runtime.NewParameterCodec(t.options), Creater: t.creater, Convertor: b.safe,
		UnsafeConvertor: b.unsafe, Defaulter: t.defaulter, Typer: t.typer,
		TableConvertor: storage.CustomResource, Authorizer: b.Authorizer,
		EquivalentResourceMapper: b.equivalents, Resource: b.resource(v), Kind: kind,
		HubGroupVersion:  kind.GroupVersion(), // there is no internal version
		MetaGroupVersion: metav1.SchemeGroupVersion,
	}
}

// scaleScope returns the scope of the scale, without its field manager: main with the kind Scale.
func (b *builder) scaleScope(v *apiextensionsv1.CustomResourceDefinitionVersion, main *handlers.RequestScope) *handlers.RequestScope {
	var options []upstreamserializer.CodecFactoryOptionsMutator
	if utilfeature.DefaultFeatureGate.Enabled(features.CBORServingAndStorage) {
		options = append(options, upstreamserializer.WithSerializer(cbor.NewSerializerInfo))
	}
	if utilfeature.DefaultFeatureGate.Enabled(features.StreamingCollectionEncodingToJSON) {
		options = append(options, upstreamserializer.WithStreamingCollectionEncodingToJSON())
	}
	if utilfeature.DefaultFeatureGate.Enabled(features.StreamingCollectionEncodingToProtobuf) {
		options = append(options, upstreamserializer.WithStreamingCollectionEncodingToProtobuf())
	}
	scope := *main
	scope.Subresource, scope.Kind = "scale", autoscalingv1.SchemeGroupVersion.WithKind("Scale")
	scope.Serializer = upstreamserializer.NewCodecFactory(scale.NewScaleConverter().Scheme(), options...)
	// An invalid column leaves those before it, as in upstream.
	scope.TableConvertor, _ = tableconvertor.New(scaleColumns(v.Subresources.Scale))
	return &scope
}

// manage sets the field managers of e. reset has the fields that its writes do not change.
func (b *builder) manage(e *Endpoint, reset map[fieldpath.APIVersion]*fieldpath.Set) (err error) {
	scope := e.Scope
	manager := func(convertor runtime.ObjectConvertor) (*managedfields.FieldManager, error) {
		return managedfields.NewDefaultCRDFieldManager(b.types, convertor, scope.Defaulter, scope.Creater,
			scope.Kind, scope.HubGroupVersion, scope.Subresource, fieldpath.NewExcludeFilterSetMap(reset))
	}
	if scope.FieldManager, err = manager(scope.Convertor); err != nil {
		return err
	}
	e.Updates, err = manager(sharing{scope.Convertor})
	return err
}

// sharing is a convertor that returns an unstructured object of the target version itself, where
// upstream's returns a deep copy. The caller must not change what it returns: a field manager only
// compares the objects of an update. For an apply it changes them, and needs the copies.
type sharing struct{ runtime.ObjectConvertor }

func (s sharing) ConvertToVersion(in runtime.Object, target runtime.GroupVersioner) (runtime.Object, error) {
	u, ok := in.(*unstructured.Unstructured)
	if version, isVersion := target.(schema.GroupVersion); ok && isVersion && u.GroupVersionKind().GroupVersion() == version {
		return in, nil
	}
	return s.ObjectConvertor.ConvertToVersion(in, target)
}

// pathOf converts a JSON path that consists of field names to a path of managedFields.
func pathOf(jsonPath string) fieldpath.Path {
	var path fieldpath.Path
	for name := range strings.SplitSeq(strings.TrimPrefix(jsonPath, "."), ".") {
		path = append(path, fieldpath.PathElement{FieldName: &name})
	}
	return path
}

// typesOf returns the type converter of the field managers. Its types come from the CRD's schemas. It
// deduces them from objects if the CRD cannot be described.
func (b *builder) typesOf() (managedfields.TypeConverter, error) {
	all := maps.Clone(b.Models)
	for i := range b.CRD.Spec.Versions {
		if err := b.describe(all, &b.CRD.Spec.Versions[i]); err != nil {
			utilruntime.HandleError(err)
			return managedfields.NewDeducedTypeConverter(), nil
		}
	}
	return managedfields.NewTypeConverter(all, b.CRD.Spec.PreserveUnknownFields)
}

// describe adds the models of a version to all.
func (b *builder) describe(all map[string]*spec.Schema, v *apiextensionsv1.CustomResourceDefinitionVersion) error {
	// Upstream's builder adds the model of Scale where there is one.
	if v.Subresources == nil || v.Subresources.Scale == nil {
		name, model, err := b.Model(b.CRD, v)
		if err != nil {
			return err
		}
		if name != "" {
			all[name] = model
			return nil
		}
	}
	document, err := openapibuilder.BuildOpenAPIV3(b.CRD, v.Name, openapibuilder.Options{})
	if err != nil {
		return err
	}
	maps.Copy(all, document.Components.Schemas)
	return nil
}
