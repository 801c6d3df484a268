package relay

import (
	"bytes"
	"context"
	"net/http"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/httpapi/negotiate"
	"github.com/larder-io/larder/httpapi/reads"
	"github.com/larder-io/larder/httpapi/request"
	"github.com/larder-io/larder/internal/registry"
)

const (
	// freshTimeout is how long a watch waits until its cache has provably reached the upstream's current revision, and
	// listFreshTimeout how long a list does.
	freshTimeout     = 20 * time.Second
	listFreshTimeout = 5 * time.Second
	// notFreshFor is how long requests that need such a proof go through after there was none in time.
	notFreshFor = time.Minute
)

// Caches reports whether a cache may serve x. Other requests go through to the upstream, which authorizes them.
// builtIn says that the resource is one of the Registry's. After the relay's start, Caches waits for the upstream's
// version: watches that go through would last beside the cache.
func (r *Relay) Caches(x *request.Request, accept []byte, builtIn bool) bool {
	if !x.IsResourceRequest || x.Method != http.MethodGet || x.VerbInPath || len(x.Parts) > 2 {
		return false
	}
	gvr := schema.GroupVersionResource{Group: x.Group, Version: x.Version, Resource: x.Resource}
	// kube-apiserver keeps no cache of events: all reads of them are consistent, and watches have no bookmarks.
	if gvr.Resource == "events" || !r.config.Follows(gvr.GroupResource()) {
		return false
	}
	<-r.contact.asked
	minor := r.contact.minor.Load()
	switch {
	case minor == 0 || r.Age() > r.config.ServeStale:
		return false
	case bytes.Contains(accept, []byte("cbor")):
		return false
	case builtIn && (r.builtIn(gvr) == nil || minor > r.config.Minor && !(r.cachesNewer() && acceptsProtobuf(accept))):
		return false // it needs a conversion, or may have fields that this program does not know
	case builtIn && minor != r.config.Minor && bytes.Contains(bytes.ToLower(accept), []byte("table")):
		return false // its columns may differ
	}
	if x.Verb == "get" {
		return isRevision(x.Query.Get("resourceVersion"))
	}
	o, err := x.ListOptions()
	return err == nil && (x.Verb == "list" && r.listsCached(o) || x.Verb == "watch") && isSelected(o, builtIn, minor == r.config.Minor)
}

// acceptsProtobuf reports whether a client accepts protobuf, in which built-in resources are
// cached.
func acceptsProtobuf(accept []byte) bool {
	f, known := negotiate.Common(accept)
	return known && f.MediaType == runtime.ContentTypeProtobuf
}

// mayServe reports whether f may serve a client that sends accept. The upstream may have become newer since the last
// check.
func (r *Relay) mayServe(f *followed, accept []byte, builtIn bool) bool {
	minor := r.contact.minor.Load()
	return !builtIn || minor <= r.config.Minor || f.minor.Load() == minor && r.cachesNewer() && acceptsProtobuf(accept)
}

// listsCached reports whether a cache may serve a list with o. A continue token may be the upstream's.
func (r *Relay) listsCached(o *internalversion.ListOptions) bool {
	from := r.config.ConsistentFrom
	proven := from > 0 && o.ResourceVersion == "" && o.ResourceVersionMatch == "" && (o.Limit <= 0 || o.Limit >= int64(from))
	return (proven || isRevision(o.ResourceVersion)) && o.Continue == ""
}

// isRevision reports whether text is a resourceVersion.
func isRevision(text string) bool {
	_, err := strconv.ParseInt(text, 10, 64)
	return err == nil
}

// isSelected reports whether caches can apply the selectors of o and the upstream also supports them. It may not support
// shards. Caches of custom resources do not have their selectable fields. Every version supports the node of a pod and
// rejects a field without a name; other fields of built-in resources differ between versions.
func isSelected(o *internalversion.ListOptions, builtIn, sameMinor bool) bool {
	if o.ShardSelector != "" {
		return false
	}
	if o.FieldSelector == nil {
		return true
	}
	for _, field := range o.FieldSelector.Requirements() {
		named := field.Field == metav1.ObjectNameField || field.Field == "metadata.namespace"
		if field.Field == "" || !named && !(builtIn && sameMinor) && (field.Field != "spec.nodeName" || !builtIn) {
			return false
		}
	}
	return true
}

// Acquire returns the cached resource that serves x, and the age of the cache: 0 if the upstream keeps it current.
// Caches must be true for x and accept. Acquire waits until the cache is fresh enough. It returns nil if x must go
// through. from serves built-in resources in a server with a store, and is nil for custom ones. The caller calls done
// after the response.
func (r *Relay) Acquire(ctx context.Context, x *request.Request, accept []byte, from *reads.Resource) (resource *reads.Resource, age time.Duration, done func()) {
	gvr := schema.GroupVersionResource{Group: x.Group, Version: x.Version, Resource: x.Resource}
	if from == nil && !r.mayFollow(gvr.GroupResource()) {
		return nil, 0, nil
	}
	f := r.acquire(gvr)
	if f == nil {
		return nil, 0, nil
	}
	began := time.Now()
	if !r.serves(ctx, f, x, accept, from != nil) {
		f.release()
		return nil, 0, nil
	}
	age = r.Age()
	if silence := f.store.Silence(); silence > heartbeat {
		age = max(age, silence)
	} else if silence <= time.Since(began) {
		age = 0 // it was proven meanwhile that the cache is current
	}
	return f.served(from), age, f.release
}

// serves waits until f is loaded and fresh enough for x, and reports whether it may serve it.
func (r *Relay) serves(ctx context.Context, f *followed, x *request.Request, accept []byte, builtIn bool) bool {
	limit := loadTimeout
	if deadline, ok := ctx.Deadline(); ok { // a request that waits in vain must still go through
		limit = min(limit, time.Until(deadline)/2)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if f.wait(ctx) != nil || f.store.Refused() || f.store.Silence() > heartbeat+r.config.ServeStale {
		return false
	}
	return r.mayServe(f, accept, builtIn) && f.scoped(x) && f.fresh(ctx, x, r.config.ConsistentFrom, r.Age() > 0)
}

// wait waits until the cache has loaded. It fails if the resource is not followed.
func (f *followed) wait(ctx context.Context) error {
	select {
	case <-f.initialized:
	case <-ctx.Done():
		return ctx.Err()
	}
	if f.err != nil {
		return f.err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(f.alive, cancel)()
	if err := f.stored().WaitReady(ctx); err != nil {
		return err
	}
	return f.alive.Err()
}

// scoped reports whether the path of x fits a resource with the scope of f. The upstream responds to others with
// an error.
func (f *followed) scoped(x *request.Request) bool {
	namespaced := f.endpoint.Namespaced
	return namespaced && (x.Namespace != "" || x.Verb != "get") || !namespaced && !x.InNamespace
}

// fresh reports whether the cache can serve x. A relay must not refuse a revision that the upstream has. A list or
// watch that begins with the present objects must have seen everything that the upstream had when the request arrived.
// from is Config.ConsistentFrom.
func (f *followed) fresh(ctx context.Context, x *request.Request, from int, away bool) bool {
	stored := f.stored()
	if x.Verb == "get" {
		return hasReached(stored, x.Query.Get("resourceVersion"))
	}
	o, _ := x.ListOptions()
	internalversion.SetListOptionsDefaults(o, x.Verb == "watch") // without a revision, a watch begins with all objects
	switch {
	case x.Verb == "list" && o.ResourceVersion == "":
		o.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
		return selectsAtLeast(stored, x.Namespace, o, from) && f.awaitCurrent(ctx, o, listFreshTimeout)
	case x.Verb == "list" && (o.ResourceVersionMatch == metav1.ResourceVersionMatchExact || o.Limit > 0 && o.ResourceVersion != "0" && o.ResourceVersionMatch == ""):
		revision, _ := strconv.ParseInt(o.ResourceVersion, 10, 64)
		_, err := stored.Cache.At(revision)
		return err == nil
	case x.Verb == "list":
		return hasReached(stored, o.ResourceVersion)
	case o.SendInitialEvents == nil || !*o.SendInitialEvents:
		return resumes(stored, o.ResourceVersion, away)
	case o.ResourceVersion == "":
		return f.awaitCurrent(ctx, o, freshTimeout)
	}
	return hasReached(stored, o.ResourceVersion)
}

// selectsAtLeast reports whether o selects at least n objects.
func selectsAtLeast(r *registry.Resource, namespace string, o *internalversion.ListOptions, n int) bool {
	q := cache.Query{Label: o.LabelSelector, Field: o.FieldSelector, Limit: n, OmitRemaining: true}
	if namespace != "" {
		q.Prefix = namespace + "/"
	}
	page, err := r.Cache.Snapshot().List(q, nil)
	return err == nil && len(page.Objects) == n
}

// resumes reports whether a watch can begin at a revision. The cache must have all events since then. While the
// upstream is away, the cache must also have reached the revision: nothing else proves that the revision exists.
func resumes(r *registry.Resource, revision string, away bool) bool {
	n, err := strconv.ParseInt(revision, 10, 64)
	if err != nil || n == 0 {
		return true // it begins with the present, or is refused
	}
	return n >= r.Cache.Log().Oldest() && (!away || hasReached(r, revision))
}

// awaitCurrent waits until the cache has provably reached the upstream's revision at the call, and sets it in
// o. Calls that wait at the same time share the proof.
func (f *followed) awaitCurrent(ctx context.Context, o *internalversion.ListOptions, limit time.Duration) bool {
	if last := f.notFreshAt.Load(); last != 0 && time.Since(time.Unix(0, last)) < notFreshFor {
		return false
	}
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	revision, err := f.stored().Store().Revision(bounded)
	if err != nil || f.stored().Cache.Wait(bounded, revision) != nil {
		if f.alive.Err() == nil && ctx.Err() == nil && bounded.Err() != nil {
			f.notFreshAt.Store(time.Now().UnixNano())
		}
		return false
	}
	o.ResourceVersion = strconv.FormatInt(revision, 10)
	return true
}

// hasReached reports whether the cache has reached a revision.
func hasReached(r *registry.Resource, revision string) bool {
	n, err := strconv.ParseInt(revision, 10, 64)
	return err == nil && r.Cache.Snapshot().Revision() >= n
}
