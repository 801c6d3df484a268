package openapi

import (
	"fmt"
	"maps"
	"sync"
	"weak"

	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	openapienablement "k8s.io/apiserver/pkg/util/openapi"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/common"
	openapiutil "k8s.io/kube-openapi/pkg/util"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/larder-io/larder/internal/registry"
)

// Models names and makes the schemas of the built-in kinds.
//
// Making all of them takes 10 ms and 6 MB, and most processes need few. So the garbage collector may
// free them, and callers keep only what they derive. kube-apiserver holds two full sets for the life of the
// process.
type Models struct {
	namer func() *openapinamer.DefinitionNamer

	mu   sync.Mutex // held while definitions are used: upstream's builders write to them
	last weak.Pointer[common.OpenAPIV3Config]
}

// NewModels returns models that have made nothing yet.
func NewModels() *Models {
	return &Models{namer: sync.OnceValue(func() *openapinamer.DefinitionNamer {
		return openapinamer.NewDefinitionNamer(legacyscheme.Scheme, apiextensionsserver.Scheme, aggregatorscheme.Scheme)
	})}
}

// generate is a common.GetOpenAPIDefinitions: every definition, without the
// fields of disabled features.
func (m *Models) generate(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	return openapienablement.GetOpenAPIDefinitionsWithoutDisabledFeatures(generatedopenapi.GetOpenAPIDefinitions)(ref)
}

// v3Locked returns the configuration for OpenAPI v3 with the schemas. The caller does not change it,
// and holds mu while it uses it.
func (m *Models) v3Locked() *common.OpenAPIV3Config {
	if config := m.last.Value(); config != nil {
		return config
	}
	config := genericapiserver.DefaultOpenAPIV3Config(m.generate, m.namer())
	m.last = weak.Make(config)
	return config
}

// Converter returns the type converter of one group. The first write of an object of the group
// builds it.
func (m *Models) Converter(g *registry.Group) managedfields.TypeConverter {
	return &lazyConverter{build: sync.OnceValues(func() (managedfields.TypeConverter, error) {
		schemas, err := m.Schemas(g)
		if err != nil {
			return nil, err
		}
		return managedfields.NewTypeConverter(schemas, false)
	})}
}

// Schemas returns the schemas of the kinds of g, and of everything that they refer to.
func (m *Models) Schemas(g *registry.Group) (map[string]*spec.Schema, error) {
	var names []string // of the Go types behind g's endpoints
	for _, v := range g.Versions {
		for _, e := range v.Endpoints {
			sample, err := g.Info.Scheme.New(e.GVK)
			if err != nil {
				return nil, fmt.Errorf("httpapi: schemas of group %q: %w", g.Name, err)
			}
			names = append(names, openapiutil.GetCanonicalTypeName(sample))
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	config := *m.v3Locked()
	schemas, err := builder3.BuildOpenAPIDefinitionsForResources(&config, names...)
	if err != nil {
		return nil, fmt.Errorf("httpapi: schemas of group %q: %w", g.Name, err)
	}
	for _, s := range schemas { // these are the definitions' own maps, which the next build changes
		s.Extensions = maps.Clone(s.Extensions)
	}
	return schemas, nil
}

// lazyConverter is a managedfields.TypeConverter that is built on first use and
// then kept: a group's takes 13 ms and 6 MB to build, and 0.2 MB to keep.
type lazyConverter struct {
	build func() (managedfields.TypeConverter, error)
}

func (c *lazyConverter) ObjectToTyped(obj runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	built, err := c.build()
	if err != nil {
		return nil, err
	}
	return built.ObjectToTyped(obj, opts...)
}

func (c *lazyConverter) TypedToObject(value *typed.TypedValue) (runtime.Object, error) {
	built, err := c.build()
	if err != nil {
		return nil, err
	}
	return built.TypedToObject(value)
}
