package discovery

import (
	"net/http"
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
	"github.com/larder-io/larder/httpapi/negotiate"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/builtin"
)

// Config is the configuration of the documents.
type Config struct {
	Groups []*registry.Group
	// Addresses returns the addresses of this server that a client can reach.
	Addresses discovery.Addresses
	// Aggregator lists the groups of /apis.
	Aggregator *aggregator.Aggregator
	// Everything holds the aggregated discovery document of /apis.
	Everything aggregated.ResourceManager
	// Peers add their resources to that document, unless the client requests only this server's. Nil
	// means that there are no peers. ID is this server's name among them.
	Peers peerproxy.Interface
	ID    string
}

// documents serves /api, /apis, and the documents of groups and versions below them.
type documents struct {
	Config
	priorities map[schema.GroupVersion]builtin.Priority
}

// Install registers the documents at t.
func Install(t common.PathHandlerByGroupVersion, config Config) error {
	d := documents{config, builtin.Priorities()}
	for _, g := range d.Groups {
		install := d.serveGroup
		if g.Name == "" {
			install = d.serveCore
		}
		if err := install(t, g); err != nil {
			return err
		}
	}
	groups := http.HandlerFunc(d.Aggregator.ServeGroups)
	t.Handle("/apis", aggregated.WrapAggregatedDiscoveryToHandler(groups, d.Everything, d.ofAll()))
	t.Handle("/apis/", groups)
	return nil
}

// serveCore registers /api and the documents of the core group's versions.
func (d documents) serveCore(t common.PathHandlerByGroupVersion, core *registry.Group) error {
	legacy := aggregated.NewResourceManager("api")
	for _, v := range core.Versions {
		if err := serveVersion(t, core, v, "/api/"+v.Version, legacy); err != nil {
			return err
		}
	}
	root := discovery.NewLegacyRootAPIHandler(d.Addresses, legacyscheme.Codecs, "/api")
	api := aggregated.WrapAggregatedDiscoveryToHandler(root, legacy, legacy)
	serveDocument(t, "/api", mediaOf(legacyscheme.Codecs), api)
	t.HandlePrefix("/api/", http.HandlerFunc(negotiate.NotFound))
	return nil
}

// ofAll returns the handler of the aggregated document of this server and its peers.
func (d documents) ofAll() http.Handler {
	if d.Peers == nil {
		return d.Everything
	}
	all := aggregated.NewPeerAggregatedDiscoveryHandler(d.ID, d.Everything, d.Peers, "apis")
	d.Peers.RegisterCacheInvalidationCallback(all.InvalidateCache)
	return all
}

// serveGroup registers /apis/g and the documents of its versions.
func (d documents) serveGroup(t common.PathHandlerByGroupVersion, g *registry.Group) error {
	serve := func(w http.ResponseWriter, req *http.Request) {
		document := Group(g) // a copy for this request, because encoding modifies its kind
		responsewriters.WriteObjectNegotiated(legacyscheme.Codecs, negotiation.DefaultEndpointRestrictions,
			schema.GroupVersion{}, w, req, http.StatusOK, &document, false)
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
			d.Everything.SetGroupVersionPriority(gv, int(priority.Group), int(priority.Version))
		}
		if err := serveVersion(t, g, v, "/apis/"+gv.String(), d.Everything); err != nil {
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

// InstallVersion registers /version.
func InstallVersion(t common.PathHandlerByGroupVersion, info *version.Info) {
	serve := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		responsewriters.WriteRawJSON(http.StatusOK, *info, w)
	})
	serveDocument(t, "/version", []string{runtime.ContentTypeJSON}, serve)
	t.HandlePrefix("/version/", http.HandlerFunc(negotiate.NotFound))
}

// InstallIndex registers / and /index.html, which list paths and the paths of remote.
func InstallIndex(t common.PathHandlerByGroupVersion, paths []string, remote routes.ListedPathProvider) {
	var listed pathList
	for _, path := range paths {
		// As in kube-apiserver, paths with a trailing slash (except two) and debug paths are not listed. Larder's own
		// paths are not listed either.
		if path == "/openapi/v3" {
			listed = append(listed, "/openapi/v3/")
		}
		if path == "/apis/" || path[len(path)-1] != '/' && !strings.HasPrefix(path, "/debug/") && !strings.HasPrefix(path, "/larder") {
			listed = append(listed, path)
		}
	}
	index := routes.IndexLister{StatusCode: http.StatusOK, PathProvider: routes.ListedPathProviders{listed, remote}}
	t.Handle("/", index)
	t.Handle("/index.html", index)
}

// pathList implements routes.ListedPathProvider.
type pathList []string

// ListedPaths returns l.
func (l pathList) ListedPaths() []string { return l }
