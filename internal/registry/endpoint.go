package registry

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// Endpoint is one resource or subresource in one served version: its REST storage and its entry in
// discovery. It is immutable.
type Endpoint struct {
	// GVR names the resource. For a subresource it names the parent's resource.
	GVR         schema.GroupVersionResource
	Subresource string

	// GVK is the kind of requests and responses. The kind of a subresource may belong to another
	// group (deployments/scale: autoscaling/v1 Scale).
	GVK schema.GroupVersionKind

	Namespaced bool
	Storage    rest.Storage

	// Parent is the endpoint of a subresource's resource. It is nil for resources.
	Parent *Endpoint

	// View serves GET, LIST and WATCH from encoded bytes; nil if the endpoint is not stored
	// and its Storage serves them.
	View *View

	SingularName string
	ShortNames   []string
	Categories   []string

	// Verbs are the verbs of discovery, sorted.
	Verbs []string

	// StorageVersion is the version in which objects are stored, and StorageVersionHash its hash in
	// discovery. Both are zero if nothing is stored.
	StorageVersion     schema.GroupVersion
	StorageVersionHash string

	kind       string // as discovery names it
	ownVersion bool   // discovery names group and version of GVK
}

// endpointKey names an endpoint.
type endpointKey struct {
	schema.GroupVersionResource
	subresource string
}

// Name is the name in discovery: "pods" or "pods/status".
func (e *Endpoint) Name() string {
	if e.Subresource == "" {
		return e.GVR.Resource
	}
	return e.GVR.Resource + "/" + e.Subresource
}

// Discovery is the endpoint's entry in its version's APIResourceList.
func (e *Endpoint) Discovery() metav1.APIResource {
	r := metav1.APIResource{
		Name: e.Name(), SingularName: e.SingularName, Namespaced: e.Namespaced, Kind: e.kind, Verbs: e.Verbs,
		ShortNames: e.ShortNames, Categories: e.Categories, StorageVersionHash: e.StorageVersionHash,
	}
	if e.ownVersion {
		r.Group, r.Version = e.GVK.Group, e.GVK.Version
	}
	return r
}

// buildEndpoints derives the endpoints of one version, ordered by name, which puts every resource before its
// subresources. It follows apiserver pkg/endpoints/installer.go, registerResourceHandlers.
func buildEndpoints(info *genericapiserver.APIGroupInfo, gv schema.GroupVersion) ([]*Endpoint, error) {
	storages := info.VersionedResourcesStorageMap[gv.Version]
	list := make([]*Endpoint, 0, len(storages))
	parents := make(map[string]*Endpoint)
	for _, name := range slices.Sorted(maps.Keys(storages)) {
		resource, subresource, _ := strings.Cut(name, "/")
		e := &Endpoint{
			GVR:         gv.WithResource(resource),
			Subresource: subresource,
			Storage:     storages[name],
			Parent:      parents[resource],
		}
		if err := e.derive(info.Scheme, storages[resource]); err != nil {
			return nil, fmt.Errorf("%s %s: %w", gv, name, err)
		}
		if subresource == "" {
			parents[resource] = e
		}
		list = append(list, e)
	}
	return list, nil
}

// derive sets the fields that follow from the interfaces of the storage. parent, the resource's storage,
// decides the scope.
func (e *Endpoint) derive(scheme *runtime.Scheme, parent rest.Storage) error {
	scoper, ok := parent.(rest.Scoper)
	if !ok {
		return fmt.Errorf("storage %T of the resource has no scope", parent)
	}
	e.Namespaced = scoper.NamespaceScoped()
	if err := e.deriveKind(scheme); err != nil {
		return err
	}
	e.deriveVerbs()
	if s, ok := e.Storage.(rest.ShortNamesProvider); ok {
		e.ShortNames = s.ShortNames()
	}
	if s, ok := e.Storage.(rest.CategoriesProvider); ok {
		e.Categories = s.Categories()
	}
	if e.Subresource == "" {
		s, ok := e.Storage.(rest.SingularNameProvider)
		if !ok {
			return fmt.Errorf("storage %T has no singular name", e.Storage)
		}
		e.SingularName = s.GetSingularName()
	}
	return e.deriveStorageVersion(scheme)
}

func (e *Endpoint) deriveKind(scheme *runtime.Scheme) error {
	gvk, err := endpoints.GetResourceKind(e.GVR.GroupVersion(), e.Storage, scheme)
	if err != nil {
		return err
	}
	e.GVK, e.kind = gvk, gvk.Kind
	if is[rest.GroupVersionKindProvider](e.Storage) {
		e.ownVersion = true
		return nil
	}
	if s, ok := e.Storage.(rest.KindProvider); ok {
		e.kind = s.Kind()
	}
	return nil
}

// connectVerbs are the verbs that discovery lists for the methods with which a
// connecter is called.
var connectVerbs = map[string]string{
	http.MethodDelete: "delete",
	http.MethodGet:    "get",
	http.MethodPatch:  "patch",
	http.MethodPost:   "create",
	http.MethodPut:    "update",
}

func (e *Endpoint) deriveVerbs() {
	s := e.Storage
	verbs := make(sets.Set[string])
	add := func(verb string, can bool) {
		if can {
			verbs.Insert(verb)
		}
	}
	add("create", is[rest.Creater](s) || is[rest.NamedCreater](s))
	add("delete", is[rest.GracefulDeleter](s))
	add("deletecollection", is[rest.CollectionDeleter](s))
	add("get", is[rest.Getter](s) || is[rest.GetterWithOptions](s))
	add("list", is[rest.Lister](s))
	add("patch", is[rest.Patcher](s))
	add("update", is[rest.Updater](s))
	add("watch", is[rest.Watcher](s))
	if c, ok := s.(rest.Connecter); ok {
		for _, method := range c.ConnectMethods() {
			verb, known := connectVerbs[method]
			add(verb, known)
		}
	}
	e.Verbs = sets.List(verbs)
}

func is[T any](s rest.Storage) bool {
	_, ok := s.(T)
	return ok
}

func (e *Endpoint) deriveStorageVersion(scheme *runtime.Scheme) error {
	s, ok := e.Storage.(rest.StorageVersionProvider)
	if !ok || s.StorageVersion() == nil {
		return nil
	}
	kinds, _, err := scheme.ObjectKinds(e.Storage.New())
	if err != nil {
		return err
	}
	gvk, ok := s.StorageVersion().KindForGroupVersionKinds(kinds)
	if !ok {
		return fmt.Errorf("no storage version for %v", kinds)
	}
	e.StorageVersion = gvk.GroupVersion()
	if utilfeature.DefaultFeatureGate.Enabled(features.StorageVersionHash) {
		e.StorageVersionHash = discovery.StorageVersionHash(gvk.Group, gvk.Version, gvk.Kind)
	}
	return nil
}
