package httpapi

import (
	"fmt"
	"net/http"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/larder-io/larder/httpapi/apimetrics"
	"github.com/larder-io/larder/httpapi/request"
	"github.com/larder-io/larder/internal/registry"
)

// Extensions knows the resources that come and go while a [Server] runs. None of them
// is in a group that the Server itself serves.
type Extensions interface {
	// Handler serves what the Server does not know: writes, documents, 404.
	http.Handler

	// Custom returns the resource that a request for it is answered from, and what to
	// call when it was; nil if there is none now.
	Custom(r *request.Request) (c *Custom, done func())

	// Groups lists the groups that the resources are in, each once.
	Groups() []metav1.APIGroup

	// OpenAPIV2 describes the resources, each by itself, and OpenAPIV3 each of their
	// versions by its path below /openapi/v3/.
	OpenAPIV2() []Description[spec.Swagger]
	OpenAPIV3() []Description[spec3.OpenAPI]
}

// Description is a part of an OpenAPI document, or a whole one, that can be built.
type Description[T any] struct {
	Name  string // tells it from the others
	State string // another one stands for another description

	// Build makes it anew.
	Build func() (*T, error)
}

// Custom is one version of a resource whose kind has no Go type: how GET, LIST and
// WATCH of it are answered from encoded bytes. It is immutable.
type Custom struct{ installed }

// CustomConfig says what a [Custom] is. All fields but the last two are required.
type CustomConfig struct {
	Resource   schema.GroupVersionResource
	Namespaced bool
	View       *registry.View
	Table      rest.TableConvertor

	// Fields are those to select by, beside name and namespace.
	Fields []string
	// Warnings are sent with every response.
	Warnings []string
}

// NewCustom returns a Custom.
func NewCustom(config CustomConfig) *Custom {
	kind := config.View.GVK
	codecs := serializer.NewCodecFactory(runtime.NewScheme()) // for the names of media types alone
	typed := codecs.SupportedMediaTypes()
	c := &Custom{installed{
		endpoint: &registry.Endpoint{
			GVR:        config.Resource,
			GVK:        kind,
			Namespaced: config.Namespaced,
			Storage:    untypedSamples{},
			View:       config.View,
		},
		scope: &handlers.RequestScope{
			Serializer:       codecs,
			Convertor:        selectable{config.Namespaced, config.Fields},
			Kind:             kind,
			Resource:         config.Resource,
			MetaGroupVersion: metav1.SchemeGroupVersion,
			TableConvertor:   config.Table,
			// Objects have no protobuf form, their metadata do.
			StandardSerializers: slices.DeleteFunc(slices.Clone(typed), func(info runtime.SerializerInfo) bool {
				return info.MediaType == runtime.ContentTypeProtobuf
			}),
		},
		view:     config.View,
		warnings: config.Warnings,
		bare:     true,
	}}
	c.monitors = apimetrics.NewMonitors(c.endpoint)
	return c
}

// untypedSamples is a storage by whose types errors name what was asked for.
type untypedSamples struct{}

// New implements rest.Storage.
func (untypedSamples) New() runtime.Object { return &unstructured.Unstructured{} }

// Destroy implements rest.Storage.
func (untypedSamples) Destroy() {}

// NewList returns a list of what New returns.
func (untypedSamples) NewList() runtime.Object { return &unstructured.UnstructuredList{} }

// selectable converts field labels of objects without a Go type, and nothing else, as
// apiextensions-apiserver pkg/apiserver/conversion/converter.go does.
type selectable struct {
	namespaced bool
	fields     []string
}

// ConvertFieldLabel implements runtime.ObjectConvertor.
func (s selectable) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	if label == "metadata.name" || label == "metadata.namespace" && s.namespaced || slices.Contains(s.fields, label) {
		return label, value, nil
	}
	return "", "", fmt.Errorf("field label not supported: %s", label)
}

// Convert implements runtime.ObjectConvertor.
func (selectable) Convert(in, _, _ any) error {
	return fmt.Errorf("httpapi: %T is not converted here", in)
}

// ConvertToVersion implements runtime.ObjectConvertor.
func (selectable) ConvertToVersion(in runtime.Object, _ runtime.GroupVersioner) (runtime.Object, error) {
	return nil, fmt.Errorf("httpapi: %T is not converted here", in)
}

// extend answers from an extension's resource if the request is for one, and reports
// whether it did.
func (x *chain) extend() bool {
	extensions := x.s.config.Extensions
	if extensions == nil || x.Method != http.MethodGet || x.Subresource != "" || x.VerbInPath || len(x.Parts) > 2 {
		return false
	}
	c, done := extensions.Custom(&x.Request)
	if c == nil {
		return false
	}
	defer done()
	switch {
	case !c.endpoint.Namespaced && x.Namespace != "":
		return false
	case c.endpoint.Namespaced && x.Namespace == "" && x.Verb == "get":
		return false
	case c.view.Converts() && x.Verb == "watch":
		return false // turns on the connections of all watches must not wait for a webhook
	case c.view.Converts() && x.LabelSelector+x.FieldSelector != "":
		return false // what is selected by is what the webhook makes
	}
	return x.read(&c.installed)
}
