package customresources

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/controller/finalizer"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

// errNotDeleting says that a CRD is no longer being deleted, because a reset has restored it.
var errNotDeleting = errors.New("customresources: the CRD is no longer being deleted")

// checkInterval is how often upstream's finalizer checks whether objects are deleted (apiextensions-apiserver
// pkg/controller/finalizer/crd_finalizer.go).
const checkInterval = 5 * time.Second

// guardedDeleter lists and deletes the objects of a CRD that is being deleted, for upstream's
// finalizer. Each call holds the backend. All calls fail once the backend is retired: its caches are
// empty then, and the finalizer would leave objects behind. They also fail once the CRD is no
// longer being deleted. Deletions count as requests that were received when the finalizer began, so that
// a reset stops them.
type guardedDeleter struct {
	finalizer.ListerCollectionDeleter
	serving *serving
	backend *backend
	since   time.Time
	listed  atomic.Bool
}

// restored reports whether the CRD is no longer being deleted.
func (g *guardedDeleter) restored() bool { return g.serving.crd.Load().DeletionTimestamp.IsZero() }

// begin begins a call. The caller releases the backend.
func (g *guardedDeleter) begin() error {
	if !g.backend.acquire() {
		return errRetired
	}
	if g.restored() {
		g.backend.release()
		return errNotDeleting
	}
	return nil
}

// List implements rest.Lister. The finalizer lists once before it deletes, and then until nothing is
// left, for at most a minute. So the second and later calls wait, until checkInterval has passed or the
// CRD is no longer being deleted.
func (g *guardedDeleter) List(ctx context.Context, options *internalversion.ListOptions) (runtime.Object, error) {
	first := !g.listed.Swap(true)
	all, err := g.list(ctx, options)
	if first || err != nil || meta.LenList(all) == 0 {
		return all, err
	}
	waiting, cancel := context.WithTimeout(ctx, checkInterval)
	defer cancel()
	g.serving.extensions.changes.until(waiting, g.restored)
	return g.list(ctx, options)
}

func (g *guardedDeleter) list(ctx context.Context, options *internalversion.ListOptions) (runtime.Object, error) {
	if err := g.begin(); err != nil {
		return nil, err
	}
	defer g.backend.release()
	return g.ListerCollectionDeleter.List(ctx, options)
}

func (g *guardedDeleter) DeleteCollection(ctx context.Context, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions, listOptions *internalversion.ListOptions) (runtime.Object, error) {
	if err := g.begin(); err != nil {
		return nil, err
	}
	defer g.backend.release()
	ctx = apirequest.WithReceivedTimestamp(ctx, g.since)
	return g.ListerCollectionDeleter.DeleteCollection(ctx, validate, options, listOptions)
}
