package aggregator

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/util/responsewriter"
	"k8s.io/klog/v2"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	v2 "k8s.io/kube-aggregator/pkg/controllers/openapi/aggregator"
	v3 "k8s.io/kube-aggregator/pkg/controllers/openapiv3/aggregator"
	filter "k8s.io/kube-openapi/pkg/aggregator"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/larder-io/larder/httpapi/openapi"
)

// OpenAPIV2 describes the APIs of the other servers.
func (a *Aggregator) OpenAPIV2() []openapi.Description[spec.Swagger] { return a.swagger.describe() }

// OpenAPIV3 lists the documents of the other servers by their path below /openapi/v3/.
func (a *Aggregator) OpenAPIV3() map[string]handler3.OpenAPIV3DiscoveryGroupVersion {
	if len(*a.routes.Load()) == 0 {
		return nil
	}
	req, err := http.NewRequest(http.MethodGet, "/openapi/v3", nil)
	if err != nil {
		return nil
	}
	w := responsewriter.NewInMemoryResponseWriter()
	a.openAPIv3.served.ServeHTTP(w, req)
	var index handler3.OpenAPIV3Discovery
	if json.Unmarshal(w.Data(), &index) != nil {
		return nil
	}
	return index.Paths
}

// ServeOpenAPIV3 proxies a document of another server.
func (a *Aggregator) ServeOpenAPIV3(w http.ResponseWriter, req *http.Request) {
	a.openAPIv3.served.ServeHTTP(w, req)
}

// openAPIv3 follows remote servers by upstream's code.
type openAPIv3 struct {
	v3.SpecProxier
	served *mux.PathRecorderMux // lists their documents and proxies requests for them
}

// swagger holds the OpenAPI v2 documents of remote servers. It implements upstream's
// SpecAggregator.
type swagger struct {
	downloader v2.Downloader

	mu    sync.Mutex
	known map[string]*swaggerOf // by name of the APIService
}

// swaggerOf is the document of one remote server.
type swaggerOf struct {
	prefix string // of its paths

	updating sync.Mutex // held during a download
	source   v2.CacheableDownloader
	current  atomic.Pointer[swaggerState] // nil if the download failed
}

// swaggerState is a downloaded document. state differs whenever the document does.
type swaggerState struct {
	state    string
	document *spec.Swagger
}

var _ v2.SpecAggregator = (*swagger)(nil)

func (s *swagger) AddUpdateAPIService(apiService *apiregistrationv1.APIService, handler http.Handler) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.known[apiService.Name]; known != nil {
		known.source.UpdateHandler(handler)
		return nil
	}
	s.known[apiService.Name] = &swaggerOf{
		prefix: "/apis/" + apiService.Spec.Group + "/" + apiService.Spec.Version + "/",
		source: v2.NewCacheableDownloader(apiService.Name, &s.downloader, handler),
	}
	return nil
}

func (s *swagger) UpdateAPIServiceSpec(name string) error {
	s.mu.Lock()
	known := s.known[name]
	s.mu.Unlock()
	if known == nil {
		return v2.ErrAPIServiceNotFound
	}
	known.updating.Lock()
	defer known.updating.Unlock()
	all, etag, err := known.source.Get()
	if err != nil {
		known.current.Store(nil)
		return err
	}
	all = filter.FilterSpecByPathsWithoutSideEffects(all, []string{known.prefix})
	known.current.Store(&swaggerState{fmt.Sprintf("%p %s", known, etag), all})
	return nil
}

func (s *swagger) RemoveAPIService(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, name)
}

// describe merges all documents that could be downloaded. Upstream renames definitions that have the same name in two
// documents and differ.
func (s *swagger) describe() []openapi.Description[spec.Swagger] {
	s.mu.Lock()
	defer s.mu.Unlock()
	var services, states []string
	var documents []*spec.Swagger
	for _, service := range slices.Sorted(maps.Keys(s.known)) {
		if d := s.known[service].current.Load(); d != nil {
			services, states, documents = append(services, service), append(states, d.state), append(documents, d.document)
		}
	}
	if documents == nil {
		return nil
	}
	return []openapi.Description[spec.Swagger]{{Name: "APIServices", State: strings.Join(states, " "), Build: func() (*spec.Swagger, error) {
		merged := new(spec.Swagger)
		for i, d := range documents {
			// The merge adds kinds to the extensions of the definitions that it has taken from earlier documents.
			own := *d
			own.Definitions = maps.Clone(d.Definitions)
			for name, definition := range own.Definitions {
				extensions := make(spec.Extensions, len(definition.Extensions))
				maps.Copy(extensions, definition.Extensions)
				definition.Extensions = extensions
				own.Definitions[name] = definition
			}
			if err := filter.MergeSpecsIgnorePathConflictRenamingDefinitionsAndParameters(merged, &own); err != nil {
				klog.ErrorS(err, "OpenAPI v2 of an APIService is left out", "name", services[i])
			}
		}
		return merged, nil
	}}}
}
