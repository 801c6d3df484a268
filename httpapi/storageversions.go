package httpapi

import (
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/storageversion"
)

// storageVersionFilter refuses writes of resources whose storage version is not published yet (apiserver
// pkg/endpoints/filters/storageversion.go).
type storageVersionFilter struct {
	versions storageversion.Manager // nil lets everything pass
}

// check refuses a write that must wait for its storage version.
func (b *storageVersionFilter) check(x *apiCall) bool {
	if b.versions == nil || b.versions.Completed() || b.passes(x) {
		return true
	}
	gr := schema.GroupResource{Group: x.Group, Resource: x.Resource}
	if !b.versions.PendingUpdate(gr) {
		return true
	}
	x.Fail(apierrors.NewServiceUnavailable(fmt.Sprintf(
		"wait for storage version registration to complete for resource: %v, last seen error: %v", gr, b.versions.LastUpdateError(gr))))
	return false
}

// passes reports whether a request need not wait: it writes nothing, or what publishing the
// versions needs.
func (b *storageVersionFilter) passes(x *apiCall) bool {
	if !x.IsResourceRequest || x.Verb == "get" || x.Verb == "list" || x.Verb == "watch" {
		return true
	}
	switch (schema.GroupResource{Group: x.Group, Resource: x.Resource}) {
	case schema.GroupResource{Group: "internal.apiserver.k8s.io", Resource: "storageversions"}:
		return true
	case schema.GroupResource{Resource: "namespaces"}: // kube-system, for the Lease of this server
		return x.Verb == "create" && x.User.GetName() == user.APIServerUser && slices.Contains(x.User.GetGroups(), user.SystemPrivilegedGroup)
	case schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}:
		return x.Namespace == metav1.NamespaceSystem
	}
	return false
}
