package customresources

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiversion "k8s.io/apimachinery/pkg/version"

	"github.com/larder-io/larder/httpapi/apimetrics"
	"github.com/larder-io/larder/httpapi/customresources/versions"
	"github.com/larder-io/larder/httpapi/reads"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/servedjson"
)

// generation serves one definition in one state of its specification.
//
// Invariant: users is 0 when idle is closed.
type generation struct {
	custom   *registry.CustomResource
	readable map[string]*reads.Resource // the versions that are served

	// built builds what writes when it is first called. If that fails,
	// failed says so, and nothing is served any more.
	built  func() (*built, error)
	failed atomic.Pointer[error]

	ending context.Context // of requests that last: ends with retirement
	end    context.CancelFunc

	mu      sync.Mutex
	users   int // requests under way
	retired bool
	idle    chan struct{} // closed once retired and without users
}

// loadTimeout is how long the first requests wait for the cache to load; later ones are
// answered that the client should try again.
const loadTimeout = 5 * time.Second

// build makes and starts the generation of s.
func (s *serving) build() (*generation, error) {
	e, definition := s.extensions, s.definition.Load()
	g := &generation{readable: make(map[string]*reads.Resource), idle: make(chan struct{})}
	g.built = sync.OnceValues(func() (*built, error) {
		made, err := s.buildVersions(g)
		if err != nil {
			g.failed.Store(&err)
		}
		return made, err
	})
	var err error
	if g.custom, err = e.config.Registry.NewCustomResource(g.resourceOf(s)); err != nil {
		return nil, err
	}
	if !defers(definition) {
		if _, err := g.built(); err != nil {
			return nil, err
		}
	}
	if err := g.custom.Finish(); err != nil {
		return nil, err
	}
	g.ending, g.end = context.WithCancel(context.Background())
	if !e.begin(g.run) {
		g.end()
		_ = g.custom.Run(g.ending) // ended already: Run only releases what custom holds
		return nil, errRetired
	}
	for i := range definition.Spec.Versions {
		if err := g.addVersion(&e.monitors, definition, &definition.Spec.Versions[i]); err != nil {
			g.retire()
			return nil, err
		}
	}
	loading, cancel := context.WithTimeout(g.ending, loadTimeout)
	defer cancel()
	if err := g.custom.WaitReady(loading); err != nil {
		e.config.Logger.Warn("custom resources are loaded late", "resource", g.custom.GroupResource, "error", err)
	}
	return g, nil
}

// resourceOf says what the resource of g is, which serves s.
func (g *generation) resourceOf(s *serving) registry.CustomResourceConfig {
	definition := s.definition.Load()
	spec, names := &definition.Spec, &definition.Status.AcceptedNames
	config := registry.CustomResourceConfig{
		GroupResource: schema.GroupResource{Group: spec.Group, Resource: names.Plural},
		Versions:      len(spec.Versions),
		Revision:      s.revision(),
		Webhook:       spec.Conversion != nil && spec.Conversion.Strategy == apiextensionsv1.WebhookConverter,
		Schemas:       func() map[string]*servedjson.Schema { return schemasOf(definition) },
		Namespaced:    spec.Scope == apiextensionsv1.NamespaceScoped,
		Selects: slices.ContainsFunc(spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool {
			return len(v.SelectableFields) > 0
		}),
		Make: func() error {
			_, err := g.built()
			return err
		},
	}
	for i := range spec.Versions {
		if v := &spec.Versions[i]; v.Served || v.Storage {
			gvk := schema.GroupVersionKind{Group: spec.Group, Version: v.Name, Kind: names.Kind}
			config.Kinds = append(config.Kinds, registry.CustomKind{GroupVersionKind: gvk, ListKind: names.ListKind})
		}
	}
	return config
}

// defers reports whether the storages of definition may wait until they are needed: they are
// sure to be built then. Where they are not, requests are refused from the start.
func defers(definition *apiextensionsv1.CustomResourceDefinition) bool {
	spec, names := &definition.Spec, &definition.Status.AcceptedNames
	if spec.PreserveUnknownFields || spec.Conversion != nil && spec.Conversion.Strategy != apiextensionsv1.NoneConverter ||
		names.Plural == "" || names.Singular == "" || names.Kind == "" || names.ListKind == "" ||
		apihelpers.IsCRDConditionTrue(definition, apiextensionsv1.NonStructuralSchema) {
		return false
	}
	for i := range spec.Versions {
		if v := &spec.Versions[i]; v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
			return false
		}
	}
	_, err := apihelpers.GetCRDStorageVersion(definition)
	return err == nil
}

// buildVersions builds what writes the versions of s, over the resource of g.
func (s *serving) buildVersions(g *generation) (*built, error) {
	c := &s.extensions.config
	models, err := s.extensions.schemas()
	if err != nil {
		return nil, err
	}
	set, err := versions.Build(versions.Config{
		Definition: s.definition.Load(), RESTOptions: g.custom, Services: c.Webhooks, Auth: c.Webhooks.Auth,
		Authorizer: c.Authorizer, MaxBodyBytes: c.MaxRequestBodyBytes, Models: models, Model: s.extensions.templatesV3.model,
	})
	if err != nil {
		return nil, err
	}
	return s.newBuilt(g, set), nil
}

// addVersion adds a version, if it is served.
func (g *generation) addVersion(monitors *apimetrics.Book, definition *apiextensionsv1.CustomResourceDefinition, v *apiextensionsv1.CustomResourceDefinitionVersion) error {
	if !v.Served {
		return nil
	}
	names := &definition.Status.AcceptedNames
	gv := schema.GroupVersion{Group: definition.Spec.Group, Version: v.Name}
	printed := versions.ColumnsOf(v)
	view, err := g.custom.View(gv.WithKind(names.Kind), names.ListKind, printed)
	if err != nil {
		return err
	}
	config := reads.CustomConfig{
		Resource:   gv.WithResource(names.Plural),
		Namespaced: definition.Spec.Scope == apiextensionsv1.NamespaceScoped,
		View:       view,
		Table:      printed.Table,
		Warnings:   warnings(definition, v),
		Life:       apimetrics.Lifecycle{Deprecated: v.Deprecated},
		Monitors:   monitors.Of(gv.WithResource(names.Plural)),
	}
	for _, f := range v.SelectableFields {
		config.Fields = append(config.Fields, strings.TrimPrefix(f.JSONPath, "."))
	}
	g.readable[v.Name] = reads.NewCustom(config)
	return nil
}

// warnings returns the warnings that responses for a deprecated version have.
func warnings(definition *apiextensionsv1.CustomResourceDefinition, v *apiextensionsv1.CustomResourceDefinitionVersion) []string {
	switch {
	case !v.Deprecated:
		return nil
	case v.DeprecationWarning != nil:
		return []string{*v.DeprecationWarning}
	}
	group, kind := definition.Spec.Group, definition.Spec.Names.Kind
	text := fmt.Sprintf("%s/%s %s is deprecated", group, v.Name, kind)
	newest := v.Name
	for _, other := range definition.Spec.Versions {
		if other.Served && !other.Deprecated && apiversion.CompareKubeAwareVersionStrings(newest, other.Name) < 0 {
			newest = other.Name
		}
	}
	if newest != v.Name {
		text += fmt.Sprintf("; use %s/%s %s", group, newest, kind)
	}
	return []string{text}
}

// run runs the cache until the generation is retired and idle, or ctx ends.
func (g *generation) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = g.custom.Run(ctx) // ends with ctx; its reflector logs its errors
	}()
	select {
	case <-g.idle:
	case <-ctx.Done():
	}
	cancel()
	<-ended
	g.end()
}

// acquire begins a request, unless the generation is retired. release ends it.
func (g *generation) acquire() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.retired {
		return false
	}
	g.users++
	return true
}

func (g *generation) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.users--; g.users == 0 && g.retired {
		close(g.idle)
	}
}

// retire lets no further request begin, and ends watches.
func (g *generation) retire() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.retired {
		return
	}
	g.retired = true
	g.end()
	if g.users == 0 {
		close(g.idle)
	}
}
