// Package registrytest runs a Registry behind upstream's own installer and handlers, for tests.
//
// The handlers are those of k8s.io/apiserver/pkg/endpoints over the storages of the Registry under test. Their
// responses are the reference for discovery and reads. A client that uses them exercises the storages as kube-apiserver
// would.
package registrytest

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	restful "github.com/emicklei/go-restful/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"
	corerest "k8s.io/kubernetes/pkg/registry/core/rest"

	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/builtin"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/kvtest"
)

// Server is a Registry with an API for clients.
type Server struct {
	Registry     *registry.Registry
	Store        *kvtest.Memory
	ClientConfig *restclient.Config
	Client       kubernetes.Interface
	Informers    informers.SharedInformerFactory

	handler http.Handler
	serving chan struct{} // closed when handler is set
}

// New builds a server over store; nil means a new store. Requests wait until Start.
func New(t testing.TB, store *kvtest.Memory, change ...func(*registry.Config)) *Server {
	t.Helper()
	s := &Server{Store: store, serving: make(chan struct{})}
	if s.Store == nil {
		s.Store = kvtest.NewMemory()
	}
	front := httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(func() {
		front.CloseClientConnections()
		front.Close()
	})
	s.ClientConfig = &restclient.Config{Host: front.URL, QPS: -1}
	var err error
	if s.Client, err = kubernetes.NewForConfig(s.ClientConfig); err != nil {
		t.Fatal(err)
	}
	s.Informers = informers.NewSharedInformerFactory(s.Client, 0)
	config := registry.Config{
		Store: s.Store,
		Tail:  kv.NewTail(kv.TailConfig{Store: s.Store, Prefix: "/registry"}),
		Config: builtin.Config{
			GenericConfig: corerest.GenericConfig{LoopbackClientConfig: s.ClientConfig, Informers: s.Informers},
			Authorizer:    authorizerfactory.NewAlwaysAllowAuthorizer(),
			Kubelet:       kubeletclient.KubeletClientConfig{PreferredAddressTypes: []string{string(corev1.NodeInternalIP)}},
		},
	}
	for _, fn := range change {
		fn(&config)
	}
	if s.Registry, err = registry.New(config); err != nil {
		t.Fatal(err)
	}
	return s
}

// Start runs the registry and its informers until the test ends. Tests request their own informers before that.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	t.Cleanup(s.Informers.Shutdown)
	kvtest.RunUntilEnd(t, s.Registry.Run)
	if err := s.Registry.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	container, err := Install(s.Registry)
	if err != nil {
		t.Fatal(err)
	}
	s.handler = withContext(container)
	close(s.serving)
	s.Informers.Start(t.Context().Done())
}

func (s *Server) serve(w http.ResponseWriter, req *http.Request) {
	select {
	case <-s.serving:
		if req.URL.Path != "/readyz" { // the response is 200
			s.handler.ServeHTTP(w, req)
		}
	case <-req.Context().Done():
	}
}

// withContext sets what upstream's handlers expect from the filters before them.
func withContext(next http.Handler) http.Handler {
	withUser := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		admin := &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}}
		next.ServeHTTP(w, req.WithContext(request.WithUser(req.Context(), admin)))
	})
	handler := filters.WithRequestInfo(filters.WithAuditInit(withUser), &request.RequestInfoFactory{
		APIPrefixes:          sets.NewString("api", "apis"),
		GrouplessAPIPrefixes: sets.NewString("api"),
	})
	return filters.WithRequestReceivedTimestamp(handler)
}

// Install puts every group version of r into one container.
func Install(r *registry.Registry) (*restful.Container, error) {
	container := restful.NewContainer()
	container.Router(restful.CurlyRouter{})
	equivalents := runtime.NewEquivalentResourceRegistry()
	for _, group := range r.Groups() {
		for _, version := range group.Versions {
			if _, _, err := GroupVersion(group, version.GroupVersion, equivalents).InstallREST(container); err != nil {
				return nil, err
			}
		}
	}
	return container, nil
}

// GroupVersion builds one version of group as newAPIGroupVersion does (apiserver pkg/server/genericapiserver.go),
// without the parts for the storage version API.
func GroupVersion(group *registry.Group, gv schema.GroupVersion, equivalents runtime.EquivalentResourceRegistry) *endpoints.APIGroupVersion {
	info := group.Info
	root := "/apis"
	if group.Name == "" {
		root = "/api"
	}
	return &endpoints.APIGroupVersion{
		Root:         root,
		Storage:      info.VersionedResourcesStorageMap[gv.Version],
		GroupVersion: gv, OptionsExternalVersion: info.OptionsExternalVersion,
		MetaGroupVersion: info.MetaGroupVersion, ParameterCodec: info.ParameterCodec,
		Serializer: info.NegotiatedSerializer, Creater: info.Scheme, Convertor: info.Scheme,
		ConvertabilityChecker: info.Scheme, UnsafeConvertor: runtime.UnsafeObjectConvertor(info.Scheme),
		Defaulter: info.Scheme, Typer: info.Scheme, Namer: runtime.Namer(meta.NewAccessor()),
		EquivalentResourceRegistry: equivalents,
		TypeConverter:              applyconfigurations.NewTypeConverter(legacyscheme.Scheme),
		Authorizer:                 authorizerfactory.NewAlwaysAllowAuthorizer(),
		MinRequestTimeout:          30 * time.Minute,
	}
}
