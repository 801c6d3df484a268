package discovery

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	upstreamdiscovery "k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/registry/registrytest"
)

func TestMain(m *testing.M) { proctest.Main(m) }

// served are the handlers by path.
type served map[string]http.Handler

func (s served) Handle(path string, h http.Handler)       { s[path] = h }
func (s served) HandlePrefix(path string, h http.Handler) { s[path+"*"] = h }

// TestEveryVersionHasADocument checks that each group and version of the registry has a document at its path, and that
// the index lists it. Documents respond only GET where upstream's router requires that.
func TestEveryVersionHasADocument(t *testing.T) {
	groups := registrytest.New(t, nil).Registry.Groups()
	all := make(served)
	config := Config{Groups: groups, Addresses: upstreamdiscovery.DefaultAddresses{DefaultAddress: "h:1"}, Everything: aggregated.NewResourceManager("apis")}
	if err := Install(all, config); err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, g := range groups {
		for _, v := range g.Versions {
			path := "/apis/" + g.Name + "/" + v.Version
			if g.Name == "" {
				path = "/api/" + v.Version
			}
			paths = append(paths, path)
			for method, code := range map[string]int{http.MethodGet: http.StatusOK, http.MethodPut: http.StatusMethodNotAllowed} {
				w := httptest.NewRecorder()
				h := all[path]
				if h == nil {
					t.Fatalf("%s is not served", path)
				}
				h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
				if w.Code != code {
					t.Errorf("%s %s: %d, want %d", method, path, w.Code, code)
				}
			}
		}
	}
	InstallIndex(all, append(slices.Clone(paths), "/apis/", "/unlisted/", "/larder"), pathList{"/apis/example.com"})
	w := httptest.NewRecorder()
	all["/"].ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	for _, path := range append(paths, "/apis/", "/apis/example.com") {
		if !strings.Contains(w.Body.String(), `"`+path+`"`) {
			t.Errorf("the index does not list %s", path)
		}
	}
	if strings.Contains(w.Body.String(), "unlisted") || strings.Contains(w.Body.String(), "larder") {
		t.Errorf("the index lists what ends with a slash, or is Larder's own: %s", w.Body)
	}
}
