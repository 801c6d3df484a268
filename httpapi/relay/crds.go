package relay

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/httpapi/customresources"
	"github.com/larder-io/larder/httpapi/customresources/versions"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/internal/registry/servedjson"
	"github.com/larder-io/larder/internal/registry/storage"
	"github.com/larder-io/larder/watch"
)

// crdResource is the resource of CRDs. It is followed as long as the relay runs: it says how custom resources
// are served, and when that changes.
func crdResource() schema.GroupVersionResource {
	return apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")
}

// settleTime is how long the requests for a custom resource go through after a change of its CRD. Until then, a server
// of the upstream may still serve the CRD's earlier state.
const settleTime = 10 * time.Second

// crdVersion is the state of a CRD that matters for its objects.
type crdVersion struct {
	uid        types.UID
	generation int64
}

// crdOf decodes a CRD.
func crdOf(o *cache.Object) (*apiextensionsv1.CustomResourceDefinition, error) {
	crd := new(apiextensionsv1.CustomResourceDefinition)
	if err := crd.Unmarshal(o.Body()); err != nil {
		return nil, fmt.Errorf("relay: decode CRD %s: %w", o.Key(), err)
	}
	return crd, nil
}

// versionOf returns the version of a CRD, the zero one if that cannot be decoded.
func versionOf(o *cache.Object) (v crdVersion) {
	if crd, err := crdOf(o); err == nil {
		v = crdVersion{crd.UID, crd.Generation}
	}
	return v
}

// mayFollow reports whether a custom resource has a CRD, which has not changed just now.
func (r *Relay) mayFollow(gr schema.GroupResource) bool {
	r.mu.Lock()
	crds, changed := r.followed[crdResource()], r.changed[gr]
	r.mu.Unlock()
	if crds == nil || time.Since(changed) < settleTime {
		return false
	}
	return crds.hasCache() && crds.stored().Cache.Snapshot().Get(gr.Resource+"."+gr.Group) != nil
}

// makeCustom makes the cache of a custom resource in one version.
func (r *Relay) makeCustom(f *followed) error {
	crds := r.acquire(crdResource())
	if crds == nil {
		return f.alive.Err()
	}
	defer crds.release()
	if err := crds.wait(f.alive); err != nil {
		return err
	}
	o := crds.stored().Cache.Snapshot().Get(f.gvr.Resource + "." + f.gvr.Group)
	if o == nil {
		return errNotServed
	}
	crd, err := crdOf(o)
	if err != nil {
		return err
	}
	f.crd = crdVersion{crd.UID, crd.Generation}
	for i := range crd.Spec.Versions {
		if v := &crd.Spec.Versions[i]; v.Name == f.gvr.Version && v.Served && crd.Status.AcceptedNames.Plural == f.gvr.Resource {
			return r.makeVersion(f, crd, v)
		}
	}
	return errNotServed
}

// makeVersion makes the cache of a version of a CRD. The upstream has converted its objects.
func (r *Relay) makeVersion(f *followed, crd *apiextensionsv1.CustomResourceDefinition, v *apiextensionsv1.CustomResourceDefinitionVersion) (err error) {
	names, namespaced := &crd.Status.AcceptedNames, crd.Spec.Scope == apiextensionsv1.NamespaceScoped
	gvk := schema.GroupVersionKind{Group: crd.Spec.Group, Version: v.Name, Kind: names.Kind}
	var custom *registry.CustomResource
	custom, err = r.config.Registry.NewCustomResource(registry.CustomResourceConfig{
		CustomConfig: encoding.CustomConfig{
			GroupResource: f.gvr.GroupResource(), Versions: 1, Namespaced: namespaced,
			Schemas: func() map[string]*servedjson.Schema {
				return customresources.StoredSchemas(crd, func() (versions.Schemas, error) { return versions.SchemasOf(crd) })
			},
			Make: sync.OnceValue(func() error { return custom.Serve(gvk) }),
		},
		Kinds: []registry.CustomKind{{GroupVersionKind: gvk, ListKind: names.ListKind}},
		In:    r.source(f, names.Kind, namespaced, false, r.config.Registry.CustomRoot(f.gvr.GroupResource())),
	})
	if err != nil {
		return err
	}
	if f.custom, err = customresources.ReadsOf(custom, &r.monitors, crd, v); err != nil {
		custom.Retire()
		return err
	}
	f.endpoint = f.custom.Endpoint
	return nil
}

// followCRDs stops following custom resources whose CRDs change, until ctx ends. The next requests
// follow them again.
func (r *Relay) followCRDs(ctx context.Context) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		crds := r.acquire(crdResource())
		if crds == nil {
			return
		}
		defer crds.release()
		if err := crds.wait(ctx); err != nil {
			return
		}
		if err := r.watchCRDs(ctx, crds); err != nil && ctx.Err() == nil {
			r.config.Logger.Info("watch of CRDs has ended, beginning again", "error", err)
		}
	}, time.Second)
}

// watchCRDs watches CRDs until the watch fails.
func (r *Relay) watchCRDs(ctx context.Context, crds *followed) error {
	initial := true
	w, err := crds.stored().Watch(ctx, storage.WatchRequest{ResourceVersion: "0", SendInitialEvents: &initial, Bookmarks: true})
	if err != nil {
		return err
	}
	defer w.Close()
	var events []watch.Delivery
	for {
		if events, err = w.Next(ctx, events[:0]); err != nil {
			return err
		}
		for _, d := range events {
			if d.Object != nil {
				r.changedCRD(d)
			}
		}
	}
}

// changedCRD stops following the custom resources of a CRD if they are followed by another state of it. If the CRD is
// deleted, their own watches deliver the deletions of their objects, and end.
func (r *Relay) changedCRD(d watch.Delivery) {
	now := versionOf(d.Object)
	changed := d.Type == watch.Deleted || d.Prev() != nil && versionOf(d.Prev()) != now
	resource, group, _ := strings.Cut(d.Object.Key(), ".")
	gr := schema.GroupResource{Group: group, Resource: resource}
	if d.Type == watch.Deleted { // clients may create and delete any number of CRDs
		r.monitors.Forget(gr)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for gvr, f := range r.followed {
		// Until f has a cache, it may have read an earlier state of the CRD.
		if gvr.GroupResource() == gr && d.Type != watch.Deleted && (!f.hasCache() || f.crd != now) {
			r.unfollowLocked(f)
			changed = true
		}
	}
	if changed {
		r.changed[gr] = time.Now()
	}
}
