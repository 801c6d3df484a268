package reads

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/rest"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"github.com/larder-io/larder/httpapi/apimetrics"
	"github.com/larder-io/larder/internal/registry"
)

// NewCustom returns the Resource of e, which needs no Storage: one version of a resource without a Go type. Clients may
// select by the field labels selectable, besides name and namespace. monitors count its reads.
func NewCustom(e registry.Endpoint, selectable []string, table rest.TableConvertor, life apimetrics.Lifecycle, warnings []string, monitors *apimetrics.Monitors) *Resource {
	var mutators []serializer.CodecFactoryOptionsMutator
	if utilfeature.DefaultFeatureGate.Enabled(features.CBORServingAndStorage) {
		mutators = append(mutators, serializer.WithSerializer(cbor.NewSerializerInfo))
	}
	codecs := serializer.NewCodecFactory(runtime.NewScheme(), mutators...) // only names the media types
	typed := codecs.SupportedMediaTypes()
	e.Storage = untypedSamples{}
	scope := &handlers.RequestScope{
		Serializer:       codecs,
		Convertor:        fieldLabels{e.Namespaced, selectable},
		Kind:             e.GVK,
		Resource:         e.GVR,
		MetaGroupVersion: metav1.SchemeGroupVersion,
		TableConvertor:   table,
		// Objects have no protobuf encoding, but their metadata have.
		StandardSerializers: slices.DeleteFunc(slices.Clone(typed), func(info runtime.SerializerInfo) bool {
			return info.MediaType == runtime.ContentTypeProtobuf
		}),
	}
	r := NewResource(&e, scope, life, warnings, monitors)
	r.bare = true
	return &r
}

// untypedSamples is the storage of a resource without a Go type. Errors about unacceptable media types name the
// types of its samples.
type untypedSamples struct{}

func (untypedSamples) New() runtime.Object { return &unstructured.Unstructured{} }

func (untypedSamples) Destroy() {}

// NewList returns an empty list of such objects.
func (untypedSamples) NewList() runtime.Object { return &unstructured.UnstructuredList{} }

// fieldLabels converts only field labels of objects without a Go type, as apiextensions-apiserver
// pkg/apiserver/conversion/converter.go does.
type fieldLabels struct {
	namespaced bool
	fields     []string
}

func (f fieldLabels) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	if label == "metadata.name" || label == "metadata.namespace" && f.namespaced || slices.Contains(f.fields, label) {
		return label, value, nil
	}
	return "", "", fmt.Errorf("field label not supported: %s", label)
}

func (fieldLabels) Convert(in, _, _ any) error {
	return fmt.Errorf("httpapi: %T is not converted here", in)
}

func (fieldLabels) ConvertToVersion(in runtime.Object, _ runtime.GroupVersioner) (runtime.Object, error) {
	return nil, fmt.Errorf("httpapi: %T is not converted here", in)
}
