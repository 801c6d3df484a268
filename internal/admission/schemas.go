package admission

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/openapi"
)

// thrifty is a client that asks for schemas when they are needed. Upstream's plugin for
// mutating policies wants a list of all schemas from the start on and every five seconds;
// the server would have to describe itself, which takes more than all else at its start,
// for policies that in most clusters do not exist.
type thrifty struct {
	kubernetes.Interface
	idle func() bool // no policy changes anything
}

// Discovery implements kubernetes.Interface.
func (t thrifty) Discovery() discovery.DiscoveryInterface {
	return thriftyDiscovery{t.Interface.Discovery(), t.idle}
}

type thriftyDiscovery struct {
	discovery.DiscoveryInterface
	idle func() bool
}

// OpenAPIV3 implements discovery.OpenAPIV3SchemaInterface.
func (d thriftyDiscovery) OpenAPIV3() openapi.Client { return schemas(d) }

// schemas lists the schemas of all group versions, and asks for one when it is wanted.
type schemas thriftyDiscovery

// Paths implements openapi.Client.
func (s schemas) Paths() (map[string]openapi.GroupVersion, error) {
	real := s.DiscoveryInterface.OpenAPIV3()
	if !s.idle() {
		return real.Paths()
	}
	groups, err := s.ServerGroups()
	if err != nil {
		return nil, fmt.Errorf("admission: %w", err)
	}
	paths := make(map[string]openapi.GroupVersion)
	for _, group := range groups.Groups {
		for _, version := range group.Versions {
			path := pathOf(schema.GroupVersion{Group: group.Name, Version: version.Version})
			paths[path] = lateSchema{real, path}
		}
	}
	return paths, nil
}

func pathOf(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "api/" + gv.Version
	}
	return "apis/" + gv.String()
}

// lateSchema is a schema that is looked for when it is asked for.
type lateSchema struct {
	from openapi.Client
	path string
}

var errNoSchema = errors.New("admission: no schema")

// Schema implements openapi.GroupVersion.
func (l lateSchema) Schema(contentType string) ([]byte, error) {
	paths, err := l.from.Paths()
	if err != nil {
		return nil, err
	}
	found, ok := paths[l.path]
	if !ok {
		return nil, fmt.Errorf("%w of %s", errNoSchema, l.path)
	}
	return found.Schema(contentType)
}

// ServerRelativeURL implements openapi.GroupVersion. It is none that the server gives: the
// first list that is not late replaces what was made of this schema.
func (l lateSchema) ServerRelativeURL() string { return "/openapi/v3/" + l.path }
