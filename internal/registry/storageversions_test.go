package registry_test

import (
	"cmp"
	"slices"
	"testing"

	restful "github.com/emicklei/go-restful/v3"
	gocmp "github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiserverfeatures "k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storageversion"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"github.com/larder-io/larder/internal/registry/registrytest"
)

// storageInfo is the content of a ResourceInfo, once all resources are registered.
type storageInfo struct {
	Resource, Stored string
	Decodable        []schema.GroupVersion
	Equivalent       []schema.GroupVersionResource
	Served           []string // without order: upstream takes them from a map
}

func sortedInfos(infos []*storageversion.ResourceInfo) []storageInfo {
	var all []storageInfo
	for _, i := range infos {
		all = append(all, storageInfo{
			Resource: i.GroupResource.String(), Stored: i.EncodingVersion, Decodable: i.DirectlyDecodableVersions,
			Equivalent: i.EquivalentResourceMapper.EquivalentResourcesFor(i.GroupResource.WithVersion(""), ""),
			Served:     slices.Sorted(slices.Values(i.ServedVersions)),
		})
	}
	slices.SortStableFunc(all, func(a, b storageInfo) int { return cmp.Compare(a.Resource, b.Resource) })
	return all
}

// TestStorageVersionsMatchUpstream compares the storage versions with those that upstream's installer derives from
// the same storages.
func TestStorageVersionsMatchUpstream(t *testing.T) {
	featuregatetesting.SetFeatureGatesDuringTest(t, utilfeature.DefaultFeatureGate, featuregatetesting.FeatureOverrides{
		apiserverfeatures.StorageVersionAPI: true, apiserverfeatures.APIServerIdentity: true,
	})
	r := registrytest.New(t, nil, everything).Registry
	prefixes := map[schema.GroupResource]string{ // where the objects of two resources are the same
		{Resource: "events"}: "events", {Group: "events.k8s.io", Resource: "events"}: "events",
	}
	equivalents := runtime.NewEquivalentResourceRegistryWithIdentity(func(gr schema.GroupResource) string { return prefixes[gr] })
	var want []*storageversion.ResourceInfo
	for _, group := range r.Groups() {
		for _, version := range group.Versions {
			container := restful.NewContainer()
			v := registrytest.GroupVersion(group, version.GroupVersion, equivalents)
			v.AllServedVersionsByResource = make(map[string][]string)
			for name, resources := range group.Info.VersionedResourcesStorageMap {
				for resource := range resources {
					v.AllServedVersionsByResource[resource] = append(v.AllServedVersionsByResource[resource], schema.GroupVersion{Group: group.Name, Version: name}.String())
				}
			}
			_, infos, err := v.InstallREST(container)
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, infos...)
		}
	}
	got := sortedInfos(r.StorageVersions())
	if len(got) < 60 {
		t.Errorf("only %d", len(got))
	}
	if diff := gocmp.Diff(sortedInfos(want), got); diff != "" {
		t.Errorf("-upstream +ours\n%s", diff)
	}
}
