package builtin

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	aggregator "k8s.io/kube-aggregator/pkg/apiserver"
	controlplane "k8s.io/kubernetes/pkg/controlplane/apiserver"
)

// Priority orders versions in discovery: first by the priority of the group, then by that of the version
// in its group, the greatest first.
type Priority = controlplane.APIServicePriority

// Priorities returns the priorities of all built-in versions, as in kubernetes
// pkg/controlplane/apiserver/aggregator.go and cmd/kube-apiserver/app. The latter does not
// export its priorities, so they are repeated here.
func Priorities() map[schema.GroupVersion]Priority {
	all := controlplane.DefaultGenericAPIServicePriorities()
	add := func(group string, priority int32, versions map[string]int32) {
		for version, v := range versions {
			all[schema.GroupVersion{Group: group, Version: version}] = Priority{Group: priority, Version: v}
		}
	}
	add("apps", 17800, map[string]int32{"v1": 15})
	add("autoscaling", 17500, map[string]int32{"v1": 15, "v2": 30, "v2beta1": 9, "v2beta2": 1})
	add("batch", 17400, map[string]int32{"v1": 15, "v1beta1": 9, "v2alpha1": 9})
	add("networking.k8s.io", 17200, map[string]int32{"v1": 15, "v1beta1": 9})
	add("policy", 17100, map[string]int32{"v1": 15, "v1beta1": 9})
	add("storage.k8s.io", 16800, map[string]int32{"v1": 15, "v1beta1": 9, "v1alpha1": 1})
	add("scheduling.k8s.io", 16600, map[string]int32{"v1": 15, "v1alpha2": 2})
	add("node.k8s.io", 16300, map[string]int32{"v1": 15, "v1beta1": 9, "v1alpha1": 1})
	add("resource.k8s.io", 16200, map[string]int32{"v1": 21, "v1beta2": 15, "v1beta1": 9, "v1alpha3": 1})
	// The group of APIServices has no APIService of its own, and comes before all others.
	own := schema.GroupVersion(aggregator.APIRegistrationGroupVersion)
	all[own] = Priority{Group: int32(aggregator.APIRegistrationGroupPriority)}
	return all
}
