package discovery

import (
	"cmp"
	"maps"
	"net/http"
	"slices"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/apiserver/pkg/util/peerproxy"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/larder-io/larder/httpapi/aggregator"
	"github.com/larder-io/larder/httpapi/customresources"
	"github.com/larder-io/larder/httpapi/negotiate"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/builtin"
)

// Documents serves /api, /apis, and the documents of groups and versions below them.
type Documents struct {
	groups []*registry.Group // without the core group, in the order of /apis
	core   *registry.Group   // nil if it is not served

	config     Config
	priorities map[schema.GroupVersion]builtin.Priority
}

// Config configures Documents.
type Config struct {
	Groups []*registry.Group
	// Addresses returns the addresses of this server that a client can reach.
	Addresses  discovery.Addresses
	Extensions *customresources.Extensions // nil: no custom resources
	Aggregator *aggregator.Aggregator      // nil: no aggregated servers
	// Everything holds the aggregated discovery document of /apis.
	Everything aggregated.ResourceManager
	// Peers add their resources to that document, unless the client requests only this server's. Nil
	// means that there are no peers. ID is this server's name among them.
	Peers peerproxy.Interface
	ID    string
}

// New returns the documents for config.
func New(config Config) *Documents {
	d := &Documents{config: config, priorities: builtin.Priorities()}
	for _, g := range config.Groups {
		if g.Name == "" {
			d.core = g
			continue
		}
		d.groups = append(d.groups, g)
	}
	slices.SortStableFunc(d.groups, func(a, b *registry.Group) int {
		return cmp.Or(cmp.Compare(d.priority(b), d.priority(a)), cmp.Compare(a.Name, b.Name))
	})
	return d
}

// priority returns the priority of a group: the greatest of its versions.
func (d *Documents) priority(g *registry.Group) (most int32) {
	for _, v := range g.Versions {
		most = max(most, d.priorities[v.GroupVersion].Group)
	}
	return most
}

// Install registers the documents at t.
func (d *Documents) Install(t common.PathHandlerByGroupVersion) error {
	for _, g := range d.groups {
		if err := d.serveGroup(t, g, d.config.Everything); err != nil {
			return err
		}
	}
	groups := http.HandlerFunc(d.serveGroups)
	if d.config.Aggregator != nil {
		groups = d.config.Aggregator.ServeGroups
	}
	t.Handle("/apis", aggregated.WrapAggregatedDiscoveryToHandler(groups, d.config.Everything, d.ofAll()))
	t.Handle("/apis/", groups)
	if d.core == nil {
		return nil
	}
	legacy := aggregated.NewResourceManager("api")
	for _, v := range d.core.Versions {
		if err := serveVersion(t, d.core, v, "/api/"+v.Version, legacy); err != nil {
			return err
		}
	}
	root := discovery.NewLegacyRootAPIHandler(d.config.Addresses, legacyscheme.Codecs, "/api")
	api := aggregated.WrapAggregatedDiscoveryToHandler(root, legacy, legacy)
	serveDocument(t, "/api", mediaOf(legacyscheme.Codecs), api)
	t.HandlePrefix("/api/", http.HandlerFunc(negotiate.NotFound))
	return nil
}

// ofAll returns the handler of the aggregated document of this server and its peers.
func (d *Documents) ofAll() http.Handler {
	if d.config.Peers == nil {
		return d.config.Everything
	}
	all := aggregated.NewPeerAggregatedDiscoveryHandler(d.config.ID, d.config.Everything, d.config.Peers, "apis")
	d.config.Peers.RegisterCacheInvalidationCallback(all.InvalidateCache)
	return all
}

// serveGroup registers /apis/g and the documents of its versions.
func (d *Documents) serveGroup(t common.PathHandlerByGroupVersion, g *registry.Group, everything aggregated.ResourceManager) error {
	serve := func(w http.ResponseWriter, req *http.Request) {
		document := Group(g) // a copy for this request, because encoding modifies its kind
		writeUnversioned(w, req, &document)
	}
	if g.Name == apiregistrationv1.GroupName { // upstream's router serves this group, and its aggregator the others
		serveDocument(t, "/apis/"+g.Name, mediaOf(legacyscheme.Codecs), http.HandlerFunc(serve))
	} else {
		t.Handle("/apis/"+g.Name, http.HandlerFunc(serve))
		t.Handle("/apis/"+g.Name+"/", http.HandlerFunc(serve))
		// Upstream's aggregator serves these two paths. Upstream's router serves those with more slashes.
		serveSlashes(t, "/apis/"+g.Name, negotiate.Document(mediaOf(legacyscheme.Codecs), http.HandlerFunc(serve)))
	}
	t.HandlePrefix("/apis/"+g.Name+"/", http.HandlerFunc(negotiate.NotFound))
	for _, v := range g.Versions {
		gv := metav1.GroupVersion{Group: g.Name, Version: v.Version}
		if priority, ok := d.priorities[v.GroupVersion]; ok {
			everything.SetGroupVersionPriority(gv, int(priority.Group), int(priority.Version))
		}
		if err := serveVersion(t, g, v, "/apis/"+gv.String(), everything); err != nil {
			return err
		}
	}
	return nil
}

// serveVersion registers the list of a version's resources, and adds the list to everything.
func serveVersion(t common.PathHandlerByGroupVersion, g *registry.Group, v registry.GroupVersion, path string, everything aggregated.ResourceManager) error {
	list := make([]metav1.APIResource, 0, len(v.Endpoints))
	for _, e := range v.Endpoints {
		list = append(list, e.Discovery())
	}
	resources, err := endpoints.ConvertGroupVersionIntoToDiscovery(list)
	if err != nil {
		return err
	}
	everything.AddGroupVersion(g.Name, apidiscoveryv2.APIVersionDiscovery{
		Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent,
		Version:   v.Version,
		Resources: resources,
	})
	lister := discovery.APIResourceListerFunc(func() []metav1.APIResource { return list })
	serveDocument(t, path, mediaOf(g.Info.NegotiatedSerializer), discovery.NewAPIVersionHandler(g.Info.NegotiatedSerializer, v.GroupVersion, lister))
	return nil
}

// mediaOf lists the media types of documents that codecs encode.
func mediaOf(codecs runtime.NegotiatedSerializer) []string {
	media, _ := negotiation.MediaTypesForSerializer(codecs)
	return media
}

// serveDocument registers a document in media for GET, with any number of trailing slashes.
func serveDocument(t common.PathHandlerByGroupVersion, path string, media []string, document http.Handler) {
	h := negotiate.Document(media, document)
	t.Handle(path, h)
	t.Handle(path+"/", h)
	serveSlashes(t, path, h)
}

// serveSlashes serves path with two or more trailing slashes, which upstream's router ignores (go-restful
// path_expression.go), and nothing below them.
func serveSlashes(t common.PathHandlerByGroupVersion, path string, h http.Handler) {
	t.HandlePrefix(path+"//", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if strings.TrimRight(req.URL.Path, "/") != path {
			negotiate.NotFound(w, req)
			return
		}
		h.ServeHTTP(w, req)
	}))
}

// serveGroups serves /apis as upstream's aggregator does (kube-aggregator
// pkg/apiserver/handler_apis.go): versioned, and without server addresses.
func (d *Documents) serveGroups(w http.ResponseWriter, req *http.Request) {
	list := &metav1.APIGroupList{Groups: make([]metav1.APIGroup, 0, len(d.groups))}
	for _, g := range d.groups {
		list.Groups = append(list.Groups, Group(g))
	}
	if d.config.Extensions != nil {
		list.Groups = append(list.Groups, d.config.Extensions.Groups()...)
	}
	writeUnversioned(w, req, list)
}

// Group returns the discovery document of a group.
func Group(g *registry.Group) metav1.APIGroup {
	document := metav1.APIGroup{Name: g.Name}
	for _, v := range g.Versions {
		entry := metav1.GroupVersionForDiscovery{GroupVersion: v.String(), Version: v.Version}
		document.Versions = append(document.Versions, entry)
	}
	document.PreferredVersion = document.Versions[0]
	return document
}

func writeUnversioned(w http.ResponseWriter, req *http.Request, document runtime.Object) {
	responsewriters.WriteObjectNegotiated(legacyscheme.Codecs, negotiation.DefaultEndpointRestrictions,
		schema.GroupVersion{}, w, req, http.StatusOK, document, false)
}

// InstallVersion registers /version.
func InstallVersion(t common.PathHandlerByGroupVersion, info *version.Info) {
	serve := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		responsewriters.WriteRawJSON(http.StatusOK, *info, w)
	})
	serveDocument(t, "/version", []string{runtime.ContentTypeJSON}, serve)
	t.HandlePrefix("/version/", http.HandlerFunc(negotiate.NotFound))
}

// InstallIndex registers / and /index.html, which list paths and the paths of remote. remote may be nil.
func InstallIndex(t common.PathHandlerByGroupVersion, paths []string, remote *aggregator.Aggregator) {
	listed := make(map[string]bool)
	for _, path := range paths {
		// As in upstream, paths with a trailing slash (except two) and debug paths are not listed. Larder's own paths
		// are not listed either.
		if path == "/openapi/v3" {
			listed["/openapi/v3/"] = true
		}
		if path == "/apis/" || path[len(path)-1] != '/' && !strings.HasPrefix(path, "/debug/") && !strings.HasPrefix(path, "/larder/") {
			listed[path] = true
		}
	}
	index := routes.IndexLister{StatusCode: http.StatusOK, PathProvider: pathLister(func() []string {
		all := maps.Clone(listed)
		if remote != nil {
			for _, path := range remote.Paths() {
				all[path] = true
			}
		}
		return slices.Sorted(maps.Keys(all))
	})}
	t.Handle("/", index)
	t.Handle("/index.html", index)
}

// pathLister implements routes.ListedPathProvider.
type pathLister func() []string

// ListedPaths calls l.
func (l pathLister) ListedPaths() []string { return l() }
