package customresources

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	openapiv2 "k8s.io/apiextensions-apiserver/pkg/controller/openapi/v2"
	apiextensionsfeatures "k8s.io/apiextensions-apiserver/pkg/features"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/kube-openapi/pkg/builder3/util"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/larder-io/larder/httpapi/customresources/versions"
	"github.com/larder-io/larder/httpapi/openapi"
)

// templateKind has the properties of a version that change upstream's description, except names and the
// schema.
type templateKind struct {
	namespaced, status, scale bool
	article                   string // before the kind in descriptions
}

// templates are upstream's descriptions of sample CRDs, one for each templateKind, in one version of
// OpenAPI.
//
// Without them, upstream's builder would generate the definitions of all built-in kinds, and every path,
// for each description.
type templates[T any] struct {
	v2    bool
	build func(crd *apiextensionsv1.CustomResourceDefinition, version string) (*T, error) // upstream's builder
	// properties returns the properties of the schema that a description has under a name, nil if it has none.
	properties func(description *T, name string) map[string]spec.Schema

	mu    sync.Mutex
	known map[templateKind]*openapi.Template[T]

	metadata func() (*metadata, error)
	namer    func() *openapinamer.DefinitionNamer // upstream's, of built-in kinds
}

// newTemplatesV2 returns the templates of OpenAPI v2.
func newTemplatesV2() *templates[spec.Swagger] {
	build := func(crd *apiextensionsv1.CustomResourceDefinition, version string) (*spec.Swagger, error) {
		document, err := builder.BuildOpenAPIV2(crd, version, describeOptions(true))
		if err == nil {
			document.Definitions = handler.PruneDefaults(document.Definitions)
		}
		return document, err
	}
	return newTemplates(true, build, func(document *spec.Swagger, name string) map[string]spec.Schema {
		return document.Definitions[name].Properties
	})
}

// newTemplatesV3 returns the templates of OpenAPI v3.
func newTemplatesV3() *templates[spec3.OpenAPI] {
	build := func(crd *apiextensionsv1.CustomResourceDefinition, version string) (*spec3.OpenAPI, error) {
		return builder.BuildOpenAPIV3(crd, version, describeOptions(false))
	}
	return newTemplates(false, build, func(document *spec3.OpenAPI, name string) map[string]spec.Schema {
		if s := document.Components.Schemas[name]; s != nil {
			return s.Properties
		}
		return nil
	})
}

func newTemplates[T any](v2 bool, build func(*apiextensionsv1.CustomResourceDefinition, string) (*T, error), properties func(*T, string) map[string]spec.Schema) *templates[T] {
	p := &templates[T]{v2: v2, build: build, properties: properties, known: make(map[templateKind]*openapi.Template[T])}
	p.metadata = sync.OnceValues(p.readMetadata)
	p.namer = sync.OnceValue(func() *openapinamer.DefinitionNamer { return openapinamer.NewDefinitionNamer(scheme.Scheme) })
	return p
}

// names returns the names in the description of a version, in the order of the placeholders.
func names(group, version, plural, kind, listKind string) []string {
	parts := strings.Split(group, ".")
	slices.Reverse(parts)
	// As k8s.io/apiserver pkg/endpoints/openapi/openapi.go, GetOperationIDAndTags.
	trimmed := strings.TrimSuffix(group, ".k8s.io")
	operation := openapinamer.ToValidOperationID(trimmed, true) + openapinamer.ToValidOperationID(version, true)
	tag := openapinamer.ToValidOperationID(trimmed, false) + "_" + openapinamer.ToValidOperationID(version, false)
	return []string{operation, tag, group, strings.Join(parts, "."), version, plural, kind, listKind}
}

// The placeholders of groups, versions and resources; kindHolder returns the placeholders of kinds.
const (
	groupHolder   = "zqgroup.zqdomain"
	versionHolder = "v7zq"
	pluralHolder  = "zqplural"
	listHolder    = "Zqlisting"
)

// kindHolder returns the placeholder for kinds with an article, "" if there is none.
func kindHolder(article string) string {
	for _, kind := range []string{"Zqkind", "Ezqkind", "Zqkinds"} {
		if endpoints.GetArticleForNoun(kind, " ") == article {
			return kind
		}
	}
	return ""
}

func holders(f templateKind) []string {
	return names(groupHolder, versionHolder, pluralHolder, kindHolder(f.article), listHolder)
}

// kindSchemaName returns the name of the schema of a kind.
func kindSchemaName(names []string) string { return names[3] + "." + names[4] + "." + names[6] }

// template returns the template of a kind of versions.
func (t *templates[T]) template(f templateKind) *openapi.Template[T] {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.known[f] == nil {
		placeholders := holders(f)
		t.known[f] = &openapi.Template[T]{
			Placeholders: placeholders, KindSchema: kindSchemaName(placeholders),
			Build: func() (*T, error) { return t.build(sample(f), versionHolder) },
		}
	}
	return t.known[f]
}

// embedded is the property of samples that holds an embedded resource.
const embedded = "embedded"

// sample returns a CRD whose names are placeholders.
func sample(f templateKind) *apiextensionsv1.CustomResourceDefinition {
	v := apiextensionsv1.CustomResourceDefinitionVersion{
		Name: versionHolder, Served: true, Storage: true, Subresources: new(apiextensionsv1.CustomResourceSubresources),
		Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
			Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{embedded: {
				Type: "object", XEmbeddedResource: true, Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": {Type: "object"}},
			}},
		}},
	}
	if f.status {
		v.Subresources.Status = new(apiextensionsv1.CustomResourceSubresourceStatus)
	}
	if f.scale {
		v.Subresources.Scale = &apiextensionsv1.CustomResourceSubresourceScale{SpecReplicasPath: ".spec.replicas", StatusReplicasPath: ".status.replicas"}
	}
	d := &apiextensionsv1.CustomResourceDefinition{Spec: apiextensionsv1.CustomResourceDefinitionSpec{
		Group: groupHolder, Scope: apiextensionsv1.ClusterScoped, Versions: []apiextensionsv1.CustomResourceDefinitionVersion{v},
		Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: pluralHolder, Kind: kindHolder(f.article), ListKind: listHolder},
	}}
	if f.namespaced {
		d.Spec.Scope = apiextensionsv1.NamespaceScoped
	}
	return d
}

// plainKind matches the kinds that upstream uses unchanged in the names of operations.
var plainKind = regexp.MustCompile(`^[A-Z][A-Za-z0-9]*$`).MatchString

// variant describes a version by its template. ok is false if the template does not fit.
func (t *templates[T]) variant(d *apiextensionsv1.CustomResourceDefinition, v *apiextensionsv1.CustomResourceDefinitionVersion) (_ openapi.Variant[T], ok bool) {
	given := &d.Spec.Names
	if len(v.SelectableFields) > 0 || !plainKind(given.Kind) || !plainKind(given.ListKind) {
		return openapi.Variant[T]{}, false
	}
	f := templateKind{namespaced: d.Spec.Scope == apiextensionsv1.NamespaceScoped, article: endpoints.GetArticleForNoun(given.Kind, " ")}
	if s := v.Subresources; s != nil {
		f.status, f.scale = s.Status != nil, s.Scale != nil
	}
	if kindHolder(f.article) == "" {
		return openapi.Variant[T]{}, false
	}
	list := names(d.Spec.Group, v.Name, given.Plural, given.Kind, given.ListKind)
	if t.builtIn(list) {
		return openapi.Variant[T]{}, false
	}
	return openapi.Variant[T]{
		Template:   t.template(f),
		Names:      list,
		KindSchema: func() (*spec.Schema, error) { return t.kindSchema(d, v) },
	}, true
}

// builtIn reports whether the schema of a version has the name of a built-in kind. Upstream then
// describes the built-in kind.
func (t *templates[T]) builtIn(names []string) bool {
	if !strings.HasPrefix(names[3], "io.k8s.") {
		return false
	}
	for _, kind := range names[6:] {
		if _, of := t.namer().GetDefinitionName(names[3] + "." + names[4] + "." + kind); of != nil {
			return true
		}
	}
	return false
}

// variants describes versions, nil if a template does not fit.
func (t *templates[T]) variants(d *apiextensionsv1.CustomResourceDefinition, included func(*apiextensionsv1.CustomResourceDefinitionVersion) bool) []openapi.Variant[T] {
	var list []openapi.Variant[T]
	for i := range d.Spec.Versions {
		v := &d.Spec.Versions[i]
		if !included(v) {
			continue
		}
		made, ok := t.variant(d, v)
		if !ok {
			return nil
		}
		list = append(list, made)
	}
	return list
}

// metadata is the properties that upstream adds to schemas of objects, and of embedded resources.
type metadata struct {
	object, embedded map[string]spec.Schema
}

// readMetadata takes the metadata from a sample.
func (t *templates[T]) readMetadata() (*metadata, error) {
	f := templateKind{article: endpoints.GetArticleForNoun("Zqkind", " ")}
	document, err := t.build(sample(f), versionHolder)
	if err != nil {
		return nil, err
	}
	object := t.properties(document, kindSchemaName(holders(f)))
	if object == nil {
		return nil, errors.New("customresources: a CRD is not described")
	}
	of := func(properties map[string]spec.Schema) map[string]spec.Schema {
		all := make(map[string]spec.Schema)
		for _, name := range []string{"apiVersion", "kind", "metadata"} {
			all[name] = properties[name]
		}
		return all
	}
	return &metadata{object: of(object), embedded: of(object[embedded].Properties)}, nil
}

// model returns the schema of a version's kind and its name. The name is "" if upstream must build
// it.
func (t *templates[T]) model(d *apiextensionsv1.CustomResourceDefinition, v *apiextensionsv1.CustomResourceDefinitionVersion) (string, *spec.Schema, error) {
	list := names(d.Spec.Group, v.Name, d.Spec.Names.Plural, d.Spec.Names.Kind, d.Spec.Names.ListKind)
	if t.builtIn(list) {
		return "", nil, nil
	}
	made, err := t.kindSchema(d, v)
	return kindSchemaName(list), made, err
}

// kindSchema returns the schema of a version's kind, by the rules of apiextensions-apiserver
// pkg/controller/openapi/builder/builder.go, without the defaults for OpenAPI v2.
func (t *templates[T]) kindSchema(d *apiextensionsv1.CustomResourceDefinition, v *apiextensionsv1.CustomResourceDefinitionVersion) (*spec.Schema, error) {
	structural, err := describedSchema(v)
	if err != nil {
		return nil, err
	}
	added, err := t.metadata()
	if err != nil {
		return nil, err
	}
	out := &spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"object"}}}
	if structural != nil && (!t.v2 || !structural.XPreserveUnknownFields && !d.Spec.PreserveUnknownFields) {
		if t.v2 {
			structural = openapiv2.ToStructuralOpenAPIV2(structural)
		}
		out = structural.ToKubeOpenAPI()
		if err := t.embed(out, added); err != nil {
			return nil, err
		}
		for name, s := range added.object {
			out.SetProperty(name, s)
		}
	}
	out.AddExtension(endpoints.RouteMetaGVK, []any{
		map[string]any{"group": d.Spec.Group, "version": v.Name, "kind": d.Spec.Names.Kind},
	})
	if t.v2 {
		return handler.PruneDefaultsSchema(out), nil
	}
	return util.WrapRefs(out), nil
}

// describedSchema returns the described schema of a version, nil if there is none.
func describedSchema(v *apiextensionsv1.CustomResourceDefinitionVersion) (*structuralschema.Structural, error) {
	props, err := versions.PropsOf(v.Schema)
	if err != nil || props == nil || validation.SchemaHasInvalidTypes(props) {
		return nil, err
	}
	structural, err := structuralschema.NewStructural(props)
	if err != nil || len(structuralschema.ValidateStructural(nil, structural)) > 0 {
		return nil, nil // described as an object with unknown fields
	}
	return structural.Unfold(), nil
}

// embed adds the properties of embedded resources to s and the schemas below it.
func (t *templates[T]) embed(s *spec.Schema, added *metadata) error {
	if s == nil {
		return nil
	}
	for name, property := range s.Properties {
		if err := t.embed(&property, added); err != nil {
			return err
		}
		s.Properties[name] = property
	}
	if s.Items != nil {
		if err := t.embed(s.Items.Schema, added); err != nil {
			return err
		}
	}
	if s.AdditionalProperties != nil {
		if err := t.embed(s.AdditionalProperties.Schema, added); err != nil {
			return err
		}
	}
	if t.v2 {
		if rules := s.Extensions["x-kubernetes-validations"]; rules != nil {
			decoded, err := openapi.Decoded(rules)
			if err != nil {
				return err
			}
			s.Extensions["x-kubernetes-validations"] = decoded
		}
		if open, _ := s.Extensions.GetBool("x-kubernetes-preserve-unknown-fields"); open {
			return nil // otherwise kubectl would reject fields that are not described
		}
	}
	if holds, _ := s.Extensions.GetBool("x-kubernetes-embedded-resource"); !holds {
		return nil
	}
	for name, property := range added.embedded {
		s.SetProperty(name, property)
	}
	for _, name := range []string{"kind", "apiVersion"} {
		if !slices.Contains(s.Required, name) {
			s.Required = append(s.Required, name)
		}
	}
	return nil
}

// cachedList is a list that is made again only after CRDs have changed. There may be thousands of
// CRDs, and each request for a document needs the list.
type cachedList[T any] struct {
	mu   sync.Mutex
	at   uint64 // number of changes when the list was made
	list []T    // nil before the first get
}

// get returns the list as of a number of changes. The caller does not change it.
func (c *cachedList[T]) get(changes uint64, list func() []T) []T {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.list == nil || c.at != changes {
		c.at, c.list = changes, slices.Clip(list())
	}
	return c.list
}

// OpenAPIV2 returns one description for each CRD.
func (e *Extensions) OpenAPIV2() []openapi.Description[spec.Swagger] {
	return e.describedV2.get(e.published.Load(), e.listV2)
}

func (e *Extensions) listV2() []openapi.Description[spec.Swagger] {
	var list []openapi.Description[spec.Swagger]
	for s, crd := range e.servings.Load().established() {
		list = append(list, openapi.Description[spec.Swagger]{
			Name: crd.Name, State: s.state, Build: func() (*spec.Swagger, error) { return e.describeV2(crd) },
			Variants: func() []openapi.Variant[spec.Swagger] {
				return e.templatesV2.variants(crd, func(v *apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Served })
			},
		})
	}
	return list
}

func describeOptions(v2 bool) builder.Options {
	return builder.Options{
		V2:                      v2,
		IncludeSelectableFields: utilfeature.DefaultFeatureGate.Enabled(apiextensionsfeatures.CustomResourceFieldSelectors),
	}
}

// describeV2 describes all served versions, without the defaults of Go types, like the document of
// the built-in kinds.
func (e *Extensions) describeV2(crd *apiextensionsv1.CustomResourceDefinition) (*spec.Swagger, error) {
	all := new(spec.Swagger)
	for _, v := range crd.Spec.Versions {
		if !v.Served {
			continue
		}
		one, err := e.templatesV2.build(crd, v.Name)
		if err != nil {
			return nil, fmt.Errorf("customresources: %w", err)
		}
		if all, err = builder.MergeSpecs(all, one); err != nil {
			return nil, fmt.Errorf("customresources: %w", err)
		}
	}
	return all, nil
}

// OpenAPIV3 returns one description for each version of each group.
func (e *Extensions) OpenAPIV3() []openapi.Description[spec3.OpenAPI] {
	return e.describedV3.get(e.published.Load(), e.listV3)
}

func (e *Extensions) listV3() []openapi.Description[spec3.OpenAPI] {
	members := make(map[schema.GroupVersion][]*serving)
	for s, crd := range e.servings.Load().established() {
		for _, v := range crd.Spec.Versions {
			if v.Served {
				key := schema.GroupVersion{Group: crd.Spec.Group, Version: v.Name}
				members[key] = append(members[key], s)
			}
		}
	}
	list := make([]openapi.Description[spec3.OpenAPI], 0, len(members))
	for key, all := range members {
		list = append(list, openapi.Description[spec3.OpenAPI]{
			Name: "apis/" + key.String(), State: stateOfAll(all),
			Build:    func() (*spec3.OpenAPI, error) { return e.describeV3(key.Version, all) },
			Variants: func() []openapi.Variant[spec3.OpenAPI] { return e.variantsV3(key.Version, all) },
		})
	}
	return list
}

// stateOfAll returns a string that differs between any two sets of servings.
func stateOfAll(all []*serving) string {
	states := make([]string, 0, len(all))
	for _, s := range all {
		states = append(states, s.state)
	}
	slices.Sort(states)
	return strings.Join(states, " ")
}

// variantsV3 describes one version of a group by templates, nil if they do not fit.
func (e *Extensions) variantsV3(version string, all []*serving) []openapi.Variant[spec3.OpenAPI] {
	var list []openapi.Variant[spec3.OpenAPI]
	for _, s := range all {
		made := e.templatesV3.variants(s.crd.Load(), func(v *apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Name == version })
		if made == nil {
			return nil
		}
		list = append(list, made...)
	}
	return list
}

// describeV3 describes one version of a group. It leaves out a CRD that cannot be described, and
// fails if none is left.
func (e *Extensions) describeV3(version string, all []*serving) (*spec3.OpenAPI, error) {
	var (
		documents []*spec3.OpenAPI
		failed    []error
	)
	for _, s := range all {
		one, err := e.templatesV3.build(s.crd.Load(), version)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		documents = append(documents, one)
	}
	if len(documents) == 0 {
		return nil, fmt.Errorf("customresources: %w", errors.Join(failed...))
	}
	merged, err := builder.MergeSpecsV3(documents...)
	if err != nil {
		return nil, fmt.Errorf("customresources: %w", err)
	}
	return merged, nil
}
