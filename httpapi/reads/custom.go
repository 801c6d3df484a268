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

// CustomConfig describes a resource without a Go type. Resource, View and Table are required.
type CustomConfig struct {
	Resource   schema.GroupVersionResource
	Namespaced bool
	View       *registry.View
	Table      rest.TableConvertor

	// Fields are the field labels that clients may select by, besides name and namespace.
	Fields []string
	// Warnings are sent with every response.
	Warnings []string

	// Life says whether the version is deprecated. Monitors count reads.
	Life     apimetrics.Lifecycle
	Monitors *apimetrics.Monitors
}

// NewCustom returns the Resource of one version of a resource without a Go type.
func NewCustom(config CustomConfig) *Resource {
	kind := config.View.GVK
	var spoken []serializer.CodecFactoryOptionsMutator
	if utilfeature.DefaultFeatureGate.Enabled(features.CBORServingAndStorage) {
		spoken = append(spoken, serializer.WithSerializer(cbor.NewSerializerInfo))
	}
	codecs := serializer.NewCodecFactory(runtime.NewScheme(), spoken...) // for the names of media types alone
	typed := codecs.SupportedMediaTypes()
	endpoint := &registry.Endpoint{
		GVR:        config.Resource,
		GVK:        kind,
		Namespaced: config.Namespaced,
		Storage:    untypedSamples{},
		View:       config.View,
	}
	scope := &handlers.RequestScope{
		Serializer:       codecs,
		Convertor:        selectable{config.Namespaced, config.Fields},
		Kind:             kind,
		Resource:         config.Resource,
		MetaGroupVersion: metav1.SchemeGroupVersion,
		TableConvertor:   config.Table,
		// Objects have no protobuf encoding, but their metadata have.
		StandardSerializers: slices.DeleteFunc(slices.Clone(typed), func(info runtime.SerializerInfo) bool {
			return info.MediaType == runtime.ContentTypeProtobuf
		}),
	}
	r := NewResource(endpoint, scope, config.Life, config.Warnings, config.Monitors)
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

// selectable converts only field labels of objects without a Go type, as apiextensions-apiserver
// pkg/apiserver/conversion/converter.go does.
type selectable struct {
	namespaced bool
	fields     []string
}

func (s selectable) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	if label == "metadata.name" || label == "metadata.namespace" && s.namespaced || slices.Contains(s.fields, label) {
		return label, value, nil
	}
	return "", "", fmt.Errorf("field label not supported: %s", label)
}

func (selectable) Convert(in, _, _ any) error {
	return fmt.Errorf("httpapi: %T is not converted here", in)
}

func (selectable) ConvertToVersion(in runtime.Object, _ runtime.GroupVersioner) (runtime.Object, error) {
	return nil, fmt.Errorf("httpapi: %T is not converted here", in)
}
