package customresources

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/endpoints"
	upstream "k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// The priorities with which kubernetes pkg/controlplane/controller/crdregistration registers
// groups and versions of custom resources.
const (
	groupPriority   = 1000
	versionPriority = 100
)

// discovery makes and serves the discovery documents of custom resources, by the rules of
// apiextensions-apiserver pkg/apiserver/customresource_discovery_controller.go.
type discovery struct {
	everything aggregated.ResourceManager

	mu    sync.RWMutex
	known map[string]*group // by name
}

// group is the discovery of one group. It is immutable.
type group struct {
	document metav1.APIGroup
	versions map[string][]metav1.APIResource
}

// update publishes the discovery of a group. members are all its CRDs.
func (d *discovery) update(name string, members []*apiextensionsv1.CustomResourceDefinition) {
	slices.SortFunc(members, func(a, b *apiextensionsv1.CustomResourceDefinition) int { return strings.Compare(a.Name, b.Name) })
	next := &group{document: metav1.APIGroup{Name: name}, versions: make(map[string][]metav1.APIResource)}
	whole := make(map[string][]apidiscoveryv2.APIResourceDiscovery)
	for _, member := range members {
		if !apihelpers.IsCRDConditionTrue(member, apiextensionsv1.Established) {
			continue
		}
		for i := range member.Spec.Versions {
			if v := &member.Spec.Versions[i]; v.Served {
				list := resources(member, v)
				next.versions[v.Name] = append(next.versions[v.Name], list...)
				// Each CRD by itself: the status of another one may claim the same names.
				whole[v.Name] = append(whole[v.Name], aggregatedEntries(name, v.Name, list)...)
			}
		}
	}
	names := slices.SortedFunc(maps.Keys(next.versions), func(a, b string) int {
		return apiversion.CompareKubeAwareVersionStrings(b, a)
	})
	for _, v := range names {
		gv := schema.GroupVersion{Group: name, Version: v}
		next.document.Versions = append(next.document.Versions, metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: v})
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.known[name]
	if len(names) == 0 {
		if before != nil {
			delete(d.known, name)
			d.everything.RemoveGroup(name)
		}
		return
	}
	next.document.PreferredVersion = next.document.Versions[0]
	d.known[name] = next
	for v, list := range whole {
		d.everything.AddGroupVersion(name, apidiscoveryv2.APIVersionDiscovery{
			Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent, Version: v, Resources: list,
		})
		d.everything.SetGroupVersionPriority(metav1.GroupVersion{Group: name, Version: v}, groupPriority, versionPriority)
	}
	if before == nil {
		return
	}
	for v := range before.versions {
		if next.versions[v] == nil {
			d.everything.RemoveGroupVersion(metav1.GroupVersion{Group: name, Version: v})
		}
	}
}

// verbs returns the verbs of the resource itself. While its CRD is being deleted,
// objects cannot be created or changed.
func verbs(crd *apiextensionsv1.CustomResourceDefinition) metav1.Verbs {
	if apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Terminating) {
		return metav1.Verbs{"delete", "deletecollection", "get", "list", "watch"}
	}
	return metav1.Verbs{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"}
}

// resources returns the entries of a CRD, and of its subresources, in the
// APIResourceList of a version.
func resources(crd *apiextensionsv1.CustomResourceDefinition, v *apiextensionsv1.CustomResourceDefinitionVersion) []metav1.APIResource {
	names, namespaced := &crd.Status.AcceptedNames, crd.Spec.Scope == apiextensionsv1.NamespaceScoped
	own := metav1.APIResource{
		Name: names.Plural, SingularName: names.Singular, Namespaced: namespaced, Kind: names.Kind,
		Verbs: verbs(crd), ShortNames: names.ShortNames, Categories: names.Categories,
	}
	for _, stored := range crd.Spec.Versions {
		if stored.Storage && stored.Served {
			own.StorageVersionHash = upstream.StorageVersionHash(crd.Spec.Group, stored.Name, crd.Spec.Names.Kind)
		}
	}
	list := []metav1.APIResource{own}
	part := metav1.APIResource{Namespaced: namespaced, Verbs: metav1.Verbs{"get", "patch", "update"}}
	if v.Subresources != nil && v.Subresources.Status != nil {
		part.Name, part.Kind = names.Plural+"/status", names.Kind
		list = append(list, part)
	}
	if v.Subresources != nil && v.Subresources.Scale != nil {
		part.Name, part.Kind = names.Plural+"/scale", "Scale"
		part.Group, part.Version = autoscalingv1.GroupName, autoscalingv1.SchemeGroupVersion.Version
		list = append(list, part)
	}
	return list
}

// aggregatedEntries returns the entries of a CRD's list in aggregated discovery, where all kinds have a
// group and a version.
func aggregatedEntries(group, version string, list []metav1.APIResource) []apidiscoveryv2.APIResourceDiscovery {
	list = slices.Clone(list)
	for i := range list {
		list[i].Group, list[i].Version = cmp.Or(list[i].Group, group), cmp.Or(list[i].Version, version)
	}
	entries, err := endpoints.ConvertGroupVersionIntoToDiscovery(list)
	if err != nil {
		panic(fmt.Sprintf("customresources: discovery of %s/%s: %v", group, version, err)) // subresources have the scope of their CRD
	}
	return entries
}

// serve responds to /apis/GROUP and /apis/GROUP/VERSION, and leaves the rest to unknown.
func (d *discovery) serve(w http.ResponseWriter, req *http.Request, unknown http.Handler) {
	below, ok := strings.CutPrefix(req.URL.Path, "/apis/")
	steps := strings.Split("apis/"+strings.Trim(below, "/"), "/")
	if !ok || len(steps) < 2 || len(steps) > 3 {
		unknown.ServeHTTP(w, req)
		return
	}
	d.mu.RLock()
	g := d.known[steps[1]]
	d.mu.RUnlock()
	switch {
	case g == nil:
		unknown.ServeHTTP(w, req)
	case len(steps) == 2:
		document := g.document // of this request alone: encoding sets its kind for a while
		responsewriters.WriteObjectNegotiated(legacyscheme.Codecs, negotiation.DefaultEndpointRestrictions,
			schema.GroupVersion{}, w, req, http.StatusOK, &document, false)
	case g.versions[steps[2]] == nil:
		unknown.ServeHTTP(w, req)
	default:
		gv := schema.GroupVersion{Group: steps[1], Version: steps[2]}
		lister := upstream.APIResourceListerFunc(func() []metav1.APIResource { return g.versions[steps[2]] })
		upstream.NewAPIVersionHandler(apiextensionsserver.Codecs, gv, lister).ServeHTTP(w, req)
	}
}
