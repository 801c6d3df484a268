package admission

import (
	"fmt"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/openapi"
)

// lazyClient is a client that fetches OpenAPI schemas when they are needed. Upstream's plugin
// for mutating policies lists all schemas at the start and every five seconds. Building them takes
// longer than the rest of the start, and most clusters have no such policies.
type lazyClient struct {
	kubernetes.Interface
	idle func() bool // no mutating policy is bound
	end  <-chan struct{}
}

// Discovery implements kubernetes.Interface.
func (c lazyClient) Discovery() discovery.DiscoveryInterface {
	return lazyDiscovery{c.Interface.Discovery(), c.idle, c.end}
}

type lazyDiscovery struct {
	discovery.DiscoveryInterface
	idle func() bool
	end  <-chan struct{}
}

// OpenAPIV3 implements discovery.OpenAPIV3SchemaInterface.
func (d lazyDiscovery) OpenAPIV3() openapi.Client { return schemas(d) }

// schemas lists the schemas of all group versions, and fetches each when it is needed.
type schemas lazyDiscovery

// Paths implements openapi.Client. Once the server stops it hides errors, because the plugin would log them.
func (s schemas) Paths() (map[string]openapi.GroupVersion, error) {
	paths, err := s.list()
	select {
	case <-s.end:
		return paths, nil
	default:
		return paths, err
	}
}

func (s schemas) list() (map[string]openapi.GroupVersion, error) {
	real := s.DiscoveryInterface.OpenAPIV3()
	if !s.idle() {
		return real.Paths()
	}
	groups, err := s.WithLegacy().ServerGroups() // every five seconds; aggregated discovery is 50 times as large
	if err != nil {
		return nil, fmt.Errorf("admission: %w", err)
	}
	paths := make(map[string]openapi.GroupVersion)
	for _, group := range groups.Groups {
		for _, version := range group.Versions {
			path := "apis/" + version.GroupVersion
			if group.Name == "" {
				path = "api/" + version.Version
			}
			paths[path] = lazySchema{real, path}
		}
	}
	return paths, nil
}

// lazySchema is a schema that is fetched when it is needed.
type lazySchema struct {
	from openapi.Client
	path string
}

// Schema implements openapi.GroupVersion.
func (l lazySchema) Schema(contentType string) ([]byte, error) {
	paths, err := l.from.Paths()
	if err != nil {
		return nil, err
	}
	found, ok := paths[l.path]
	if !ok {
		return nil, fmt.Errorf("admission: no schema of %s", l.path)
	}
	return found.Schema(contentType)
}

// ServerRelativeURL implements openapi.GroupVersion. The server has no such URL, so the plugin
// replaces this schema when it first gets the server's own list.
func (l lazySchema) ServerRelativeURL() string { return "/openapi/v3/" + l.path }
