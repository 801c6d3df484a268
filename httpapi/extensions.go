package httpapi

import (
	"net/http"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/larder-io/larder/httpapi/openapi"
	"github.com/larder-io/larder/httpapi/reads"
	"github.com/larder-io/larder/httpapi/request"
)

// Extensions knows the resources that come and go while a [Server] runs. None of them
// is in a group that the Server itself serves.
type Extensions interface {
	// Handler serves what the Server does not know: writes, documents, 404.
	http.Handler

	// Custom returns the resource that a request for it is answered from, and what to
	// call when it was; nil if there is none now.
	Custom(r *request.Request) (c *reads.Resource, done func())

	// Groups lists the groups that the resources are in, each once.
	Groups() []metav1.APIGroup

	// What the resources are is described in the OpenAPI documents.
	openapi.Extensions
}

// extend answers from an extension's resource if the request is for one, and reports
// whether it did.
func (x *chain) extend() bool {
	extensions := x.s.config.Extensions
	if extensions == nil || x.Method != http.MethodGet || x.Subresource != "" || x.VerbInPath || len(x.Parts) > 2 {
		return false
	}
	c, done := extensions.Custom(&x.Request)
	if c == nil {
		return false
	}
	defer done()
	switch {
	case !c.Endpoint.Namespaced && x.Namespace != "":
		return false
	case c.Endpoint.Namespaced && x.Namespace == "" && x.Verb == "get":
		return false
	case c.View.Converts() && x.Verb == "watch":
		return false // turns on the connections of all watches must not wait for a webhook
	case c.View.Converts() && x.LabelSelector+x.FieldSelector != "":
		return false // what is selected by is what the webhook makes
	}
	return x.read(c)
}

// Schemas returns the OpenAPI schemas of definitions of custom resources, and with them
// those that schemas of custom resources refer to.
func (s *Server) Schemas() (map[string]*spec.Schema, error) {
	for _, g := range s.config.Registry.Groups() {
		if g.Name == apiextensions.GroupName {
			return s.models.Schemas(g)
		}
	}
	return nil, nil
}
