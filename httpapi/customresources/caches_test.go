package customresources_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/httpapi/request"
	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/storage"
)

func shelvesResource() schema.GroupResource {
	return schema.GroupResource{Group: "example.com", Resource: "shelves"}
}

// cached returns the objects in the cache of r.
func cached(r *registry.Resource) map[string]*cache.Object {
	all := make(map[string]*cache.Object)
	for o := range r.Cache.Snapshot().All() {
		all[o.Key()] = o
	}
	return all
}

// randomShelf returns a shelf with random fields. The schema lacks some of them.
func randomShelf(random *rand.Rand, name, version string) string {
	spec := map[string]any{}
	for field, value := range map[string]any{
		"width": random.IntN(100), "color": []string{"red", "<blue>&", "\u2028"}[random.IntN(3)], "free": map[string]any{"Z": []any{nil, 1.5, 1e30, "x"}, "a": map[string]any{}},
		"unknown": true, "inner": map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "x"}}, "colour": "grey",
	} {
		if random.IntN(2) == 0 {
			spec[field] = value
		}
	}
	shelf := map[string]any{
		"apiVersion": "example.com/" + version, "kind": "Shelf", "above": 1,
		"metadata": map[string]any{"name": name, "labels": map[string]any{"n": fmt.Sprint(random.IntN(3))}, "annotations": map[string]any{"k": "v\n"}},
	}
	if random.IntN(3) > 0 {
		shelf["spec"] = spec
	}
	data, err := json.Marshal(shelf)
	if err != nil {
		panic(err)
	}
	return string(data)
}

// TestOffersMatchTheStore checks that a cache filled by the server's own writes equals one filled from the store.
func TestOffersMatchTheStore(t *testing.T) {
	for name, text := range map[string]string{"several versions": shelves, "one version": oneVersion()} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			s.define(t, text)
			s.eventually(t, call{method: http.MethodGet, path: shelvesV1}, func(a response) bool { return a.code == http.StatusOK })
			r := s.registry.CustomResource(shelvesResource())
			random := rand.New(rand.NewPCG(1, 2))
			for i := range 40 {
				name := fmt.Sprintf("s%d", i)
				s.do(t, http.MethodPost, shelvesV1, "application/json", randomShelf(random, name, "v1"))
				switch random.IntN(4) {
				case 0:
					s.do(t, http.MethodPatch, shelvesV1+"/"+name, "application/merge-patch+json", `{"metadata":{"labels":{"more":"x"}},"spec":{"width":null,"color":"green"}}`)
				case 1:
					s.do(t, http.MethodPatch, shelvesV1+"/"+name+"?fieldManager=m&force=true", "application/apply-patch+yaml", `{"apiVersion":"example.com/v1","kind":"Shelf","spec":{"color":"white"}}`)
				case 2:
					s.do(t, http.MethodDelete, shelvesV1+"/"+name, "", "")
				}
				if text == shelves && i%5 == 0 {
					s.do(t, http.MethodPost, shelvesV2, "application/json", randomShelf(random, name+"-other", "v2"))
				}
			}
			s.get(t, shelvesV1) // waits until the cache has all writes
			offered := cached(r)
			if r.Reflector.Stats.Offered.Load() == 0 {
				t.Error("no object was adopted from an offer")
			}
			loads := r.Reflector.Stats.Loads.Load()
			r.Reflector.Reload()
			proctest.Eventually(t, "the cache is loaded again", func() error {
				if r.Reflector.Stats.Loads.Load() == loads {
					return errors.New("not yet")
				}
				return nil
			})
			s.get(t, shelvesV1)
			compareCaches(t, offered, cached(r))
		})
	}
}

func compareCaches(t *testing.T, got, want map[string]*cache.Object) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("got %d objects, want %d", len(got), len(want))
	}
	for key, w := range want {
		g := got[key]
		switch {
		case g == nil:
			t.Errorf("%s is missing", key)
			continue
		case string(g.Body()) != string(w.Body()) || g.Revision() != w.Revision() || g.StoredSize() != w.StoredSize():
			t.Errorf("%s:\n got %d %d %s\nwant %d %d %s", key, g.Revision(), g.StoredSize(), g.Body(), w.Revision(), w.StoredSize(), w.Body())
			continue
		}
		for _, label := range []string{"n", "more", "none"} {
			if got, want := g.Labels().Get(label), w.Labels().Get(label); got != want {
				t.Errorf("%s: label %s is %q, want %q", key, label, got, want)
			}
		}
		for _, field := range []string{"metadata.name", "metadata.namespace", "spec.color", "spec.colour"} {
			if got, want := g.Fields().Get(field), w.Fields().Get(field); got != want {
				t.Errorf("%s: field %s is %q, want %q", key, field, got, want)
			}
		}
	}
}

// TestCheckCoversCustomResources checks that the consistency check finds a wrong cache of custom resources, and that
// the cache is then loaded again.
func TestCheckCoversCustomResources(t *testing.T) {
	s := newServer(t, func(c *registry.Config) { c.CheckInterval = 100 * time.Millisecond })
	s.define(t, shelves)
	for i := range 5 {
		s.do(t, http.MethodPost, shelvesV1, "application/json", fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Shelf","metadata":{"name":"s%d"}}`, i))
	}
	s.get(t, shelvesV1)
	r := s.registry.CustomResource(shelvesResource())
	until := func(what string, check func(storage.CheckStats) bool) {
		t.Helper()
		proctest.Eventually(t, what, func() error {
			if now := r.CheckStats(); !check(now) {
				return fmt.Errorf("%+v", now)
			}
			return nil
		})
	}
	until("the cache is compared", func(now storage.CheckStats) bool { return now.Equal > 1 })
	if now := r.CheckStats(); now.Different != 0 {
		t.Fatalf("a correct cache differs: %+v", now)
	}
	item := s.put(t, "/registry/example.com/shelves/ns/other", `{"apiVersion":"example.com/v1","kind":"Shelf","metadata":{"name":"other","namespace":"ns"}}`)
	s.get(t, shelvesV1)
	r.Cache.Apply(cache.Batch{Revision: item + 1, Changes: []cache.Change{{Key: "ns/s3"}}})
	s.put(t, "/registry/example.com/elsewhere", "x") // the store reaches the cache's revision
	until("the difference is found", func(now storage.CheckStats) bool { return now.Different > 0 })
	contains(t, s.get(t, "/metrics").body, `larder_cache_offered_total{group="example.com",resource="shelves"} `)
	proctest.Eventually(t, "the lost object is back", func() error {
		if a := s.get(t, shelvesV1+"/s3"); a.code != http.StatusOK {
			return fmt.Errorf("%s", a)
		}
		return nil
	})
}

// oneVersion returns the CRD shelves without its version v2.
func oneVersion() string {
	one, _, _ := strings.Cut(shelves, "  - name: v2\n")
	return one
}

// TestResumesLoadsNothing checks that a custom resource's watches resume cheaply only if the resource has a cache and
// no conversion webhook. The check itself loads no cache.
func TestResumesLoadsNothing(t *testing.T) {
	for _, converts := range []bool{false, true} {
		s := newServer(t)
		webhook := newConverter(t)
		s.define(t, shelves, func(crd *apiextensionsv1.CustomResourceDefinition) {
			if converts {
				webhook.by(crd)
			}
		})
		req := &request.Request{}
		req.Verb, req.Group, req.Version, req.Resource = "watch", "example.com", "v1", "shelves"
		if s.extensions.Resumes(req, "1") || s.registry.CustomResource(shelvesResource()) != nil {
			t.Error("the resource has a cache before its first read, or its watches resume cheaply")
		}
		s.eventually(t, call{method: http.MethodGet, path: shelvesV1}, func(a response) bool { return a.code == http.StatusOK })
		var list metav1.PartialObjectMetadataList
		must(t, json.Unmarshal([]byte(s.get(t, shelvesV1).body), &list))
		if got := s.extensions.Resumes(req, list.ResourceVersion); got == converts {
			t.Errorf("with a webhook %v: watches resume cheaply: %v", converts, got)
		}
	}
}
