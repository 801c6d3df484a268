package registry_test

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/test/integration/etcd"

	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/internal/registry/registrytest"
)

// TestReadsValuesOfEarlierReleases stores the objects that Kubernetes keeps of its releases (k8s.io/api/testdata), and
// reads them in all versions that serve them. Upstream's codecs make what is expected.
func TestReadsValuesOfEarlierReleases(t *testing.T) {
	featuregatetesting.SetFeatureGatesDuringTest(t, utilfeature.DefaultFeatureGate,
		featuregatetesting.FeatureOverrides{"AllAlpha": true, "AllBeta": true})
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/api").Output()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "testdata", "*", "*.pb"))
	if err != nil {
		t.Fatal(err)
	}
	s := registrytest.New(t, nil, everything)
	dirs, values, read := storedIn(), make(map[string][]byte), make(map[string][]*registry.Endpoint)
	for i, file := range files {
		endpoints := readers(s, kindOf(file))
		if len(endpoints) == 0 || dirs[endpoints[0].GVR.GroupResource()] == "" {
			continue // it is not stored, or in a version that this release cannot decode
		}
		key := "v" + strconv.Itoa(i)
		if endpoints[0].Namespaced {
			key = "somewhere/" + key
		}
		value, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		values[path.Join(dirs[endpoints[0].GVR.GroupResource()], key)] = value
		read[key] = endpoints
	}
	if len(values) < 300 {
		t.Fatalf("only %d of %d files are values of resources", len(values), len(files))
	}
	s.Store.PutAll(values)
	s.Start(t)
	for key, endpoints := range read {
		for _, e := range endpoints {
			checkDecoded(t, e, key, values[path.Join(dirs[e.GVR.GroupResource()], key)])
		}
	}
}

// storedIn returns the directories in which upstream stores resources, without namespaces.
func storedIn() map[schema.GroupResource]string {
	dirs := make(map[schema.GroupResource]string)
	for gvr, row := range etcd.GetEtcdStorageDataForNamespace(tableNamespace) {
		dirs[gvr.GroupResource()] = strings.TrimSuffix(path.Dir(row.ExpectedEtcdPath), "/"+tableNamespace)
	}
	return dirs
}

// kindOf returns the kind that a file such as apps.v1.Deployment.pb names.
func kindOf(file string) schema.GroupVersionKind {
	name := strings.TrimSuffix(strings.TrimSuffix(filepath.Base(file), ".pb"), ".after_roundtrip")
	parts := strings.Split(name, ".")
	n := len(parts)
	gvk := schema.GroupVersionKind{Group: strings.Join(parts[:n-2], "."), Version: parts[n-2], Kind: parts[n-1]}
	if gvk.Group == "core" {
		gvk.Group = ""
	}
	return gvk
}

// readers returns the endpoints that serve the resource of a kind, if this release can decode it.
func readers(s *registrytest.Server, gvk schema.GroupVersionKind) (found []*registry.Endpoint) {
	if !legacyscheme.Scheme.Recognizes(gvk) {
		return nil
	}
	for _, group := range s.Registry.Groups() {
		for _, version := range group.Versions {
			for _, e := range version.Endpoints {
				if e.View != nil && e.Subresource == "" && e.GVK.GroupKind() == gvk.GroupKind() {
					found = append(found, e)
				}
			}
		}
	}
	return found
}

// checkDecoded compares the cached object at key in the version of e with value as upstream decodes and encodes it.
func checkDecoded(t *testing.T, e *registry.Endpoint, key string, value []byte) {
	t.Helper()
	cached := e.View.Resource.Cache.Snapshot().Get(key)
	if cached == nil {
		t.Fatalf("%s has no %s in its cache", e.GVR, key)
	}
	codec := e.View.Resource.Codec()
	obj, err := runtime.Decode(legacyscheme.Codecs.UniversalDecoder(), value)
	if err == nil {
		err = codec.SetRevision(obj, cached.Revision())
	}
	if err != nil {
		t.Fatal(err)
	}
	if codec.Decorate != nil {
		codec.Decorate(obj)
	}
	for media, mediaType := range map[encoding.MediaType]string{
		encoding.JSON: runtime.ContentTypeJSON, encoding.Protobuf: runtime.ContentTypeProtobuf,
	} {
		supported := legacyscheme.Codecs.SupportedMediaTypes()
		info := supported[slices.IndexFunc(supported, func(i runtime.SerializerInfo) bool { return i.MediaType == mediaType })]
		want, err := runtime.Encode(legacyscheme.Codecs.EncoderForVersion(info.Serializer, e.GVK.GroupVersion()), obj)
		if err != nil {
			t.Fatal(err)
		}
		checkEncoding(t, e, media, cached, want)
	}
}
