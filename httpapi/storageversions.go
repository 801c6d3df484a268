package httpapi

import (
	"net/http"

	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/storageversion"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/nethttp"
)

// storageVersionFilter refuses writes of resources whose storage version is not published yet, by
// upstream's filter.
type storageVersionFilter struct {
	versions storageversion.Manager // nil lets everything pass
	filter   *nethttp.Filter
}

func newStorageVersionFilter(versions storageversion.Manager) storageVersionFilter {
	return storageVersionFilter{versions, nethttp.NewFilter(func(next http.Handler) http.Handler {
		return filters.WithStorageVersionPrecondition(next, versions, legacyscheme.Codecs)
	})}
}

// check refuses a write that must wait for its storage version.
func (b *storageVersionFilter) check(x *apiCall) bool {
	if b.versions == nil || b.versions.Completed() {
		return true
	}
	w := nethttp.NewRecorder()
	ctx := exchange.Context(x.Audit.Context(x.Base()), x.RequestInfo(), x.User, x.Received)
	if b.filter.Run(w, x.HTTP().WithContext(ctx)) != nil {
		return true
	}
	w.SendTo(&x.Response)
	return false
}
