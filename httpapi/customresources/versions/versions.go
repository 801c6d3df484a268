package versions

import (
	"fmt"
	"maps"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/conversion"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/scale/scheme/autoscalingv1"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// Config is the configuration of [Build]. All fields are required.
type Config struct {
	CRD *apiextensionsv1.CustomResourceDefinition

	// RESTOptions are the REST options of the storages. Their codec encodes objects for the store.
	RESTOptions generic.RESTOptionsGetter

	// Schemas are those that SchemasOf returns for CRD.
	Schemas Schemas

	// Converters makes the converter between the versions.
	Converters *conversion.CRConverterFactory

	Authorizer authorizer.Authorizer

	// Models are the schemas that the schemas of custom resources refer to.
	Models map[string]*spec.Schema

	// Model returns the name and the schema of a version's kind, as in the OpenAPI document. If the name is
	// empty, upstream's builder makes the schema, which costs more.
	Model func(*apiextensionsv1.CustomResourceDefinition, *apiextensionsv1.CustomResourceDefinitionVersion) (string, *spec.Schema, error)
}

// Version is one version of a CRD.
type Version struct {
	Storage *customresource.REST // of the resource itself

	// Endpoints are the resource itself, under "", and its status and scale if the version has them.
	Endpoints map[string]*Endpoint
}

// Endpoint is the resource itself or a subresource.
type Endpoint struct {
	Storage Storage
	Scope   *handlers.RequestScope
	Updates *managedfields.FieldManager // computes the managedFields of creates and updates
}

// Storage is the storage of an Endpoint.
type Storage interface {
	rest.Storage
	rest.Patcher
}

// subresource is the storage of a subresource.
type subresource struct{ rest.Patcher }

// Destroy implements rest.Storage. The storage of the resource itself releases what both share.
func (subresource) Destroy() {}

// Set is the versions of a CRD that are served or stored, by name.
type Set struct {
	Versions map[string]*Version
	Stored   string // the name of the version in which objects are stored
}

// builder builds the versions of one CRD.
type builder struct {
	Config
	stored       string
	types        managedfields.TypeConverter
	safe, unsafe runtime.ObjectConvertor
	equivalents  runtime.EquivalentResourceRegistry
	replicas     managedfields.ResourcePathMappings
	statusReset  map[fieldpath.APIVersion]*fieldpath.Set // the fields that writes of the status do not change
}

// Build builds the versions of a CRD.
func Build(config Config) (*Set, error) {
	b := &builder{
		Config: config, equivalents: runtime.NewEquivalentResourceRegistry(), replicas: make(managedfields.ResourcePathMappings),
		statusReset: make(map[fieldpath.APIVersion]*fieldpath.Set),
	}
	if err := b.prepare(); err != nil {
		return nil, fmt.Errorf("versions: CRD %s: %w", config.CRD.Name, err)
	}
	set := &Set{Versions: make(map[string]*Version), Stored: b.stored}
	for i := range config.CRD.Spec.Versions {
		v := &config.CRD.Spec.Versions[i]
		if !v.Served && !v.Storage {
			continue
		}
		made, err := b.version(v)
		if err != nil {
			return nil, fmt.Errorf("versions: version %s of CRD %s: %w", v.Name, config.CRD.Name, err)
		}
		set.Versions[v.Name] = made
	}
	return set, b.manageStatus(set)
}

// prepare builds the parts that all versions share.
func (b *builder) prepare() (err error) {
	crd := b.CRD
	if b.stored, err = apihelpers.GetCRDStorageVersion(crd); err != nil {
		return err
	}
	if names := &crd.Status.AcceptedNames; names.Plural == "" || names.Singular == "" || names.Kind == "" || names.ListKind == "" {
		return fmt.Errorf("incomplete status.acceptedNames: %+v", names)
	}
	for i := range crd.Spec.Versions {
		b.declare(&crd.Spec.Versions[i])
	}
	if b.types, err = b.typesOf(); err != nil {
		return err
	}
	b.safe, b.unsafe, err = b.Converters.NewConverter(crd)
	return err
}

// declare registers the kinds of v and the path of its replicas for all versions.
func (b *builder) declare(v *apiextensionsv1.CustomResourceDefinitionVersion) {
	resource, kind := b.resource(v), b.kind(v)
	b.equivalents.RegisterKindFor(resource, "", kind)
	b.replicas[kind.GroupVersion().String()] = nil
	if v.Subresources == nil {
		return
	}
	if v.Subresources.Status != nil {
		b.equivalents.RegisterKindFor(resource, "status", kind)
	}
	if s := v.Subresources.Scale; s != nil {
		b.equivalents.RegisterKindFor(resource, "scale", autoscalingv1.SchemeGroupVersion.WithKind("Scale"))
		b.replicas[kind.GroupVersion().String()] = pathOf(s.SpecReplicasPath)
	}
}

func (b *builder) resource(v *apiextensionsv1.CustomResourceDefinitionVersion) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: b.CRD.Spec.Group, Version: v.Name, Resource: b.CRD.Status.AcceptedNames.Plural}
}

func (b *builder) kind(v *apiextensionsv1.CustomResourceDefinitionVersion) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: b.CRD.Spec.Group, Version: v.Name, Kind: b.CRD.Status.AcceptedNames.Kind}
}

func (b *builder) namespaced() bool {
	return b.CRD.Spec.Scope == apiextensionsv1.NamespaceScoped
}

// version builds one version. The managedFields of its status depend on all versions: manageStatus completes it.
func (b *builder) version(v *apiextensionsv1.CustomResourceDefinitionVersion) (*Version, error) {
	types := b.typesOfVersion(v)
	storage, err := b.storage(v, types)
	if err != nil {
		return nil, err
	}
	main := &Endpoint{Storage: storage.CustomResource, Scope: b.scope(v, types, storage)}
	if err := b.manage(main, storage.CustomResource.GetResetFields()); err != nil {
		return nil, err
	}
	made := &Version{Storage: storage.CustomResource, Endpoints: map[string]*Endpoint{"": main}}
	if storage.Status != nil {
		scope := *main.Scope
		scope.Subresource = "status"
		made.Endpoints["status"] = &Endpoint{Storage: subresource{storage.Status}, Scope: &scope}
		maps.Copy(b.statusReset, storage.Status.GetResetFields())
	}
	if storage.Scale != nil {
		made.Endpoints["scale"] = &Endpoint{Storage: subresource{storage.Scale}, Scope: b.scaleScope(v, main.Scope)}
		err = b.manage(made.Endpoints["scale"], nil) // a Scale has a Go type
	}
	return made, err
}

// manageStatus completes the endpoints of the status. Their field managers know, for all versions, the fields that
// writes of the status do not change.
func (b *builder) manageStatus(set *Set) error {
	for _, v := range set.Versions {
		if status := v.Endpoints["status"]; status != nil {
			if err := b.manage(status, b.statusReset); err != nil {
				return fmt.Errorf("versions: status of CRD %s: %w", b.CRD.Name, err)
			}
		}
	}
	return nil
}

// Schemas are the structural schemas of a CRD's versions by name. A version without one has nil. Schemas are
// shared and must not be changed.
type Schemas map[string]*structuralschema.Structural

// SchemasOf returns the schemas of all versions. It fails if upstream does not serve CRDs with such schemas.
func SchemasOf(crd *apiextensionsv1.CustomResourceDefinition) (Schemas, error) {
	schemas := make(Schemas)
	for i := range crd.Spec.Versions {
		v := &crd.Spec.Versions[i]
		s, err := structural(crd, v)
		if err != nil {
			return nil, fmt.Errorf("versions: schema of version %s of CRD %s: %w", v.Name, crd.Name, err)
		}
		schemas[v.Name] = s
	}
	return schemas, nil
}

func structural(crd *apiextensionsv1.CustomResourceDefinition, v *apiextensionsv1.CustomResourceDefinitionVersion) (*structuralschema.Structural, error) {
	props, err := PropsOf(v.Schema.DeepCopy())
	if err != nil || props == nil {
		return nil, err
	}
	s, err := structuralschema.NewStructural(props)
	if crd.Spec.PreserveUnknownFields {
		return s, nil // nil if it is not structural
	}
	if err != nil {
		return nil, err
	}
	return s, defaulting.PruneDefaults(s)
}

// PropsOf returns a schema in upstream's internal form, with which it shares memory; nil if there is none.
func PropsOf(schema *apiextensionsv1.CustomResourceValidation) (*apiextensions.JSONSchemaProps, error) {
	if schema == nil {
		return nil, nil
	}
	var internal apiextensions.CustomResourceValidation
	if err := apiextensionsv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(schema, &internal, nil); err != nil {
		return nil, err
	}
	return internal.OpenAPIV3Schema, nil
}
