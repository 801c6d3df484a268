package routes

import (
	"net/http"

	"k8s.io/apiserver/pkg/endpoints/metrics"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"

	"github.com/larder-io/larder/httpapi/apimetrics"
	"github.com/larder-io/larder/internal/registry"
)

// lifecycle is the lifecycle of a kind and the warnings for clients of a deprecated one.
type lifecycle struct {
	apimetrics.Lifecycle
	warnings []string
}

// instrument reports what h does for e under upstream's metrics, by verb, and warns
// clients of deprecated kinds.
func instrument(e *registry.Endpoint, life lifecycle, verb string, h http.HandlerFunc) http.Handler {
	served := func(w http.ResponseWriter, req *http.Request) {
		for _, text := range life.warnings {
			warning.AddWarning(req.Context(), "", text)
		}
		h(w, req)
	}
	measure := func(scope string) http.HandlerFunc {
		return metrics.InstrumentHandlerFunc(verb, e.GVR.Group, e.GVR.Version, e.GVR.Resource, e.Subresource,
			scope, metrics.APIServerComponent, life.Deprecated, life.Removed, served)
	}
	item, namespace, cluster := measure("resource"), measure("namespace"), measure("cluster")
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch info, _ := apirequest.RequestInfoFrom(req.Context()); {
		case info == nil || len(info.Parts) > 1 || verb == apirequest.MethodPost:
			item(w, req)
		case info.Namespace != "" && e.Namespaced:
			namespace(w, req)
		default:
			cluster(w, req)
		}
	})
}
