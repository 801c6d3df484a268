package httpapi

import (
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/larder-io/larder/httpapi/reads"
)

// ageHeader is the header field of responses from a relay's caches while its upstream does not respond: the seconds
// since the last contact.
const ageHeader = "Larder-Upstream-Age"

// unavailable returns the error for a request that the upstream could not authenticate or authorize.
func unavailable() error {
	err := apierrors.NewServiceUnavailable("the upstream API server does not respond")
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	return err
}

// goesThrough reports whether a relay proxies x to its upstream. The relay serves other requests from its caches or as
// its own pages.
func (r *router) goesThrough(x *apiCall) bool {
	if r.relay == nil {
		return false
	}
	if !x.IsResourceRequest {
		_, own := r.table.Load().NonResource(x.Path)
		return !own
	}
	if x.User == nil || x.User.GetName() == user.Anonymous { // the upstream may reject requests without a credential
		return true
	}
	return !strings.HasPrefix(x.Path, "/"+x.APIPrefix+"/") || !r.relay.Caches(&x.Request, x.Peek("Accept"), r.builtIn(x) != nil)
}

// builtIn returns the resource that serves reads of the built-in resource that x names, nil if x names another.
func (r *router) builtIn(x *apiCall) *reads.Resource {
	if e, ok := r.table.Load().Lookup(&x.Request); ok && e.View != nil {
		return &e.Resource
	}
	return nil
}

// serveRelayed serves a read from a cache of the relay, if that is fresh enough. Otherwise it proxies x.
func (r *router) serveRelayed(x *apiCall) {
	if x.uncached {
		r.relay.Forward(&x.Call)
		return
	}
	resource, age, done := r.relay.Acquire(x.Base(), &x.Request, x.Peek("Accept"), r.builtIn(x))
	if resource == nil {
		r.relay.Forward(&x.Call)
		return
	}
	defer done()
	if age > 0 {
		x.Add(ageHeader, strconv.Itoa(int(age.Seconds())))
	}
	if r.reader.read(x, resource) {
		r.relay.CountHit()
		return
	}
	x.Del(ageHeader)
	r.relay.Forward(&x.Call)
}
