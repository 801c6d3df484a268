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
	"k8s.io/klog/v2"

	"github.com/larder-io/larder/httpapi/apimetrics"
	"github.com/larder-io/larder/httpapi/customresources/versions"
	"github.com/larder-io/larder/httpapi/reads"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/internal/registry/servedjson"
)

// backend serves one CRD with one specification.
type backend struct {
	custom   *registry.CustomResource
	schemas  func() (versions.Schemas, error) // computes them once
	readable map[string]*reads.Resource       // the versions that are served

	// built makes the storages and endpoints in its first call. If that fails, failed has the error,
	// and the CRD is no longer served.
	built  func() (*built, error)
	failed atomic.Pointer[error]

	ending context.Context // of watches: ends when the backend is retired
	end    context.CancelFunc

	running context.Context // of the cache: ends when the backend is retired and without users, or the server stops
	stop    context.CancelFunc

	mu      sync.Mutex
	users   int // requests that are being served
	retired bool
}

// loadTimeout limits how long the first requests wait until the cache has loaded. If it takes longer, they
// fail with an error that asks the client to retry.
const loadTimeout = 5 * time.Second

// build makes and starts the backend of s.
func (s *serving) build() (*backend, error) {
	e, crd := s.extensions, s.crd.Load()
	g := &backend{readable: make(map[string]*reads.Resource)}
	g.schemas = sync.OnceValues(func() (versions.Schemas, error) { return versions.SchemasOf(crd) })
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
	if err := g.start(s); err != nil {
		g.custom.Retire()
		return nil, err
	}
	loading, cancel := context.WithTimeout(g.ending, loadTimeout)
	defer cancel()
	if err := g.custom.WaitReady(loading); err != nil {
		klog.InfoS("Custom resources are not loaded yet, serving them anyway", "resource", g.custom.GroupResource, "err", err)
	}
	return g, nil
}

// start builds the resources that serve reads and, unless they may wait, the storages. It starts the cache.
func (b *backend) start(s *serving) error {
	e, crd := s.extensions, s.crd.Load()
	for i := range crd.Spec.Versions {
		v := &crd.Spec.Versions[i]
		if !v.Served {
			continue
		}
		var err error
		if b.readable[v.Name], err = ReadsOf(b.custom, &e.monitors, crd, v); err != nil {
			return err
		}
	}
	if !mayWait(crd) {
		if _, err := b.built(); err != nil {
			return err
		}
	}
	b.ending, b.end = context.WithCancel(context.Background())
	b.running, b.stop = context.WithCancel(context.Background())
	if !e.begin(b.run) {
		b.end()
		return errRetired
	}
	return nil
}

// hasWebhook reports whether a webhook converts the objects of crd.
func hasWebhook(crd *apiextensionsv1.CustomResourceDefinition) bool {
	return crd.Spec.Conversion != nil && crd.Spec.Conversion.Strategy == apiextensionsv1.WebhookConverter
}

// resourceOf returns the configuration of the resource of b, which serves s.
func (b *backend) resourceOf(s *serving) registry.CustomResourceConfig {
	crd := s.crd.Load()
	spec, names := &crd.Spec, &crd.Status.AcceptedNames
	config := registry.CustomResourceConfig{Revision: s.revision(), CustomConfig: encoding.CustomConfig{
		GroupResource: schema.GroupResource{Group: spec.Group, Resource: names.Plural},
		Versions:      len(spec.Versions),
		Webhook:       hasWebhook(crd),
		Schemas:       func() map[string]*servedjson.Schema { return StoredSchemas(crd, b.schemas) },
		Namespaced:    spec.Scope == apiextensionsv1.NamespaceScoped,
		Selects: slices.ContainsFunc(spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool {
			return len(v.SelectableFields) > 0
		}),
		Make: func() error {
			_, err := b.built()
			return err
		},
	}}
	for i := range spec.Versions {
		if v := &spec.Versions[i]; v.Served || v.Storage {
			gvk := schema.GroupVersionKind{Group: spec.Group, Version: v.Name, Kind: names.Kind}
			config.Kinds = append(config.Kinds, registry.CustomKind{GroupVersionKind: gvk, ListKind: names.ListKind})
		}
	}
	return config
}

// mayWait reports whether the storages of crd can be built when a request needs them, because building
// cannot fail. Otherwise the first request builds them, and an error fails all requests.
func mayWait(crd *apiextensionsv1.CustomResourceDefinition) bool {
	spec, names := &crd.Spec, &crd.Status.AcceptedNames
	if spec.PreserveUnknownFields || spec.Conversion != nil && spec.Conversion.Strategy != apiextensionsv1.NoneConverter ||
		names.Plural == "" || names.Singular == "" || names.Kind == "" || names.ListKind == "" ||
		apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.NonStructuralSchema) {
		return false
	}
	for i := range spec.Versions {
		if v := &spec.Versions[i]; v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
			return false
		}
	}
	_, err := apihelpers.GetCRDStorageVersion(crd)
	return err == nil
}

// buildVersions builds the storages, scopes and endpoints of the versions of s over the resource of
// g.
func (s *serving) buildVersions(g *backend) (*built, error) {
	c := &s.extensions.config
	models, err := s.extensions.schemas()
	if err != nil {
		return nil, err
	}
	schemas, err := g.schemas()
	if err != nil {
		return nil, err
	}
	set, err := versions.Build(versions.Config{
		CRD: s.crd.Load(), RESTOptions: g.custom, Schemas: schemas, Converters: s.extensions.converters,
		Authorizer: c.Authorizer, Models: models, Model: s.extensions.templatesV3.model,
	})
	if err != nil {
		return nil, err
	}
	return s.newWriters(g, set), nil
}

// ReadsOf returns the resource that serves reads of a version of a CRD from custom. monitors counts the reads.
func ReadsOf(custom *registry.CustomResource, monitors *apimetrics.Resources, crd *apiextensionsv1.CustomResourceDefinition, v *apiextensionsv1.CustomResourceDefinitionVersion) (*reads.Resource, error) {
	names := &crd.Status.AcceptedNames
	gv := schema.GroupVersion{Group: crd.Spec.Group, Version: v.Name}
	e := registry.Endpoint{GVR: gv.WithResource(names.Plural), GVK: gv.WithKind(names.Kind), Namespaced: crd.Spec.Scope == apiextensionsv1.NamespaceScoped}
	printed := versions.ColumnsOf(v)
	var err error
	if e.View, err = custom.View(e.GVK, names.ListKind, printed); err != nil {
		return nil, err
	}
	var selectable []string
	for _, f := range v.SelectableFields {
		selectable = append(selectable, strings.TrimPrefix(f.JSONPath, "."))
	}
	return reads.NewCustom(e, selectable, printed.Table, apimetrics.Lifecycle{Deprecated: v.Deprecated}, warnings(crd, v), monitors.Of(e.GVR, "")), nil
}

// warnings returns the warnings in responses for a deprecated version.
func warnings(crd *apiextensionsv1.CustomResourceDefinition, v *apiextensionsv1.CustomResourceDefinitionVersion) []string {
	switch {
	case !v.Deprecated:
		return nil
	case v.DeprecationWarning != nil:
		return []string{*v.DeprecationWarning}
	}
	group, kind := crd.Spec.Group, crd.Spec.Names.Kind
	text := fmt.Sprintf("%s/%s %s is deprecated", group, v.Name, kind)
	newest := v.Name
	for _, other := range crd.Spec.Versions {
		if other.Served && !other.Deprecated && apiversion.CompareKubeAwareVersionStrings(newest, other.Name) < 0 {
			newest = other.Name
		}
	}
	if newest != v.Name {
		text += fmt.Sprintf("; use %s/%s %s", group, newest, kind)
	}
	return []string{text}
}

// run runs the cache until the backend is retired and idle, or ctx ends.
func (b *backend) run(ctx context.Context) {
	defer b.end()
	defer context.AfterFunc(ctx, b.stop)()
	_ = b.custom.Run(b.running) // ends with b.running; its reflector logs its errors
}

// acquire begins a request, unless the backend is retired. release ends the request.
func (b *backend) acquire() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.retired {
		return false
	}
	b.users++
	return true
}

func (b *backend) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.users--; b.users == 0 && b.retired {
		b.stop()
	}
}

// retire ends watches and rejects further requests.
func (b *backend) retire() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.retired {
		return
	}
	b.retired = true
	b.end()
	if b.users == 0 {
		b.stop()
	}
}

// StoredSchemas returns the schemas of stored objects by version. There are none if objects are not
// pruned, or if the function schemas fails, which returns the schemas of crd.
func StoredSchemas(crd *apiextensionsv1.CustomResourceDefinition, schemas func() (versions.Schemas, error)) map[string]*servedjson.Schema {
	stored := make(map[string]*servedjson.Schema)
	if crd.Spec.PreserveUnknownFields {
		return stored
	}
	all, _ := schemas() // without schemas objects are decoded
	for version, s := range all {
		if s != nil {
			gv := schema.GroupVersion{Group: crd.Spec.Group, Version: version}
			stored[version] = servedjson.New(s, gv.WithKind(crd.Status.AcceptedNames.Kind))
		}
	}
	return stored
}
