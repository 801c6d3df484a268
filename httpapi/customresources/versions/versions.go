package versions

import (
	"fmt"

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
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/scale/scheme/autoscalingv1"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// Config is the configuration of [Build]. All fields but Models and Model are required.
type Config struct {
	CRD *apiextensionsv1.CustomResourceDefinition

	// RESTOptions are the REST options of the storages. Their codec encodes objects for the store.
	RESTOptions generic.RESTOptionsGetter

	// Services and Auth find and authenticate conversion webhooks.
	Services webhook.ServiceResolver
	Auth     webhook.AuthenticationInfoResolverWrapper

	Authorizer authorizer.Authorizer

	// Models are the schemas that the schemas of custom resources refer to. If it is nil, the field
	// managers deduce the types of objects.
	Models map[string]*spec.Schema

	// Model returns the name and the schema of a version's kind, as in the OpenAPI document. If it is nil
	// or returns an empty name, upstream's builder makes the schema, which costs more.
	Model func(*apiextensionsv1.CustomResourceDefinition, *apiextensionsv1.CustomResourceDefinitionVersion) (string, *spec.Schema, error)
}

// Version is one version of a CRD. Status and Scale are nil if the version has no such
// subresource.
type Version struct {
	Storage              customresource.CustomResourceStorage
	Scope, Status, Scale *handlers.RequestScope

	// Updates and StatusUpdates compute managedFields of creates and updates.
	Updates, StatusUpdates *managedfields.FieldManager
}

// Set is the versions of a CRD that are served or stored, by name.
type Set struct {
	Versions map[string]*Version
	Stored   string // the name of the version in which objects are stored
}

// builder builds the versions of one CRD.
type builder struct {
	Config
	stored       string
	schemas      map[string]*Schema
	structurals  map[string]*structuralschema.Structural // of schemas
	types        managedfields.TypeConverter
	safe, unsafe runtime.ObjectConvertor
	equivalents  runtime.EquivalentResourceRegistry
	replicas     managedfields.ResourcePathMappings
}

// Build builds the versions of a CRD.
func Build(config Config) (*Set, error) {
	b := &builder{
		Config: config, equivalents: runtime.NewEquivalentResourceRegistry(), replicas: make(managedfields.ResourcePathMappings),
		schemas: make(map[string]*Schema), structurals: make(map[string]*structuralschema.Structural),
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

// prepare makes what all versions share.
func (b *builder) prepare() (err error) {
	crd := b.CRD
	if b.stored, err = apihelpers.GetCRDStorageVersion(crd); err != nil {
		return err
	}
	if names := &crd.Status.AcceptedNames; names.Plural == "" || names.Singular == "" || names.Kind == "" || names.ListKind == "" {
		return fmt.Errorf("incomplete status.acceptedNames: %+v", names)
	}
	for i := range crd.Spec.Versions {
		v := &crd.Spec.Versions[i]
		s, err := SchemaOf(crd, v)
		if err != nil {
			return fmt.Errorf("schema of %s: %w", v.Name, err)
		}
		b.schemas[v.Name], b.structurals[v.Name] = s, s.Structural
		b.declare(v)
	}
	if b.types, err = b.typesOf(); err != nil {
		return err
	}
	converters, err := conversion.NewCRConverterFactory(b.Services, b.Auth)
	if err != nil {
		return err
	}
	b.safe, b.unsafe, err = converters.NewConverter(crd)
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

// version builds one version without its status. The fields of the status depend on all versions.
func (b *builder) version(v *apiextensionsv1.CustomResourceDefinitionVersion) (*Version, error) {
	types := b.typesOfVersion(v)
	storage, err := b.storage(v, types)
	if err != nil {
		return nil, err
	}
	made := &Version{Storage: storage, Scope: b.scope(v, types, storage)}
	if made.Updates, err = b.manage(made.Scope, storage.CustomResource.GetResetFields()); err != nil {
		return nil, err
	}
	if storage.Scale == nil {
		return made, nil
	}
	made.Scale = b.scaleScope(v, made.Scope)
	_, err = b.manage(made.Scale, nil) // a Scale has a Go type
	return made, err
}

// manageStatus adds the scopes of the status. Its field managers know, for all versions, the fields that
// writes of the status do not change.
func (b *builder) manageStatus(set *Set) error {
	reset := make(map[fieldpath.APIVersion]*fieldpath.Set)
	for _, v := range set.Versions {
		if v.Storage.Status == nil {
			continue
		}
		for version, fields := range v.Storage.Status.GetResetFields() {
			reset[version] = fields
		}
	}
	for _, v := range set.Versions {
		if v.Storage.Status == nil {
			continue
		}
		scope := *v.Scope
		scope.Subresource = "status"
		var err error
		if v.StatusUpdates, err = b.manage(&scope, reset); err != nil {
			return fmt.Errorf("versions: status of CRD %s: %w", b.CRD.Name, err)
		}
		v.Status = &scope
	}
	return nil
}

// Schema is the schema of one version, in upstream's two forms. Both are nil if the version has
// none. Structural, by which objects are decoded, may be nil, too, if they are not pruned.
type Schema struct {
	Props      *apiextensions.JSONSchemaProps
	Structural *structuralschema.Structural
}

// SchemaOf returns the schema of a version, which is the caller's own. It fails if upstream does
// not serve CRDs with such a schema.
func SchemaOf(crd *apiextensionsv1.CustomResourceDefinition, v *apiextensionsv1.CustomResourceDefinitionVersion) (*Schema, error) {
	if v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
		return &Schema{}, nil
	}
	var internal apiextensions.CustomResourceValidation
	if err := apiextensionsv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(v.Schema.DeepCopy(), &internal, nil); err != nil {
		return nil, err
	}
	s := &Schema{Props: internal.OpenAPIV3Schema}
	structural, err := structuralschema.NewStructural(s.Props)
	if crd.Spec.PreserveUnknownFields {
		s.Structural = structural // nil if it is not structural
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	s.Structural = structural.DeepCopy() // it shares defaults with Props
	return s, defaulting.PruneDefaults(s.Structural)
}
