package extension_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// converter is a webhook that renames spec.color and spec.colour, and can be down.
type converter struct {
	*httptest.Server
	down  atomic.Bool
	calls atomic.Int64
}

func newConverter(t *testing.T) *converter {
	c := new(converter)
	c.Server = httptest.NewTLSServer(c)
	t.Cleanup(c.Close)
	return c
}

// ServeHTTP converts.
func (c *converter) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	c.calls.Add(1)
	if c.down.Load() {
		http.Error(w, "down", http.StatusServiceUnavailable)
		return
	}
	var review struct {
		Request struct {
			UID               string           `json:"uid"`
			DesiredAPIVersion string           `json:"desiredAPIVersion"`
			Objects           []map[string]any `json:"objects"`
		} `json:"request"`
	}
	if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	for _, object := range review.Request.Objects {
		object["apiVersion"] = review.Request.DesiredAPIVersion
		spec, _ := object["spec"].(map[string]any)
		from, to := "color", "colour"
		if strings.HasSuffix(review.Request.DesiredAPIVersion, "v1") {
			from, to = to, from
		}
		if value, ok := spec[from]; ok {
			delete(spec, from)
			spec[to] = value
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
		"response": map[string]any{"uid": review.Request.UID, "result": map[string]any{"status": "Success"}, "convertedObjects": review.Request.Objects},
	})
}

// by has a definition's versions converted by c.
func (c *converter) by(d *apiextensionsv1.CustomResourceDefinition) {
	url := c.URL
	d.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{
		Strategy: apiextensionsv1.WebhookConverter,
		Webhook: &apiextensionsv1.WebhookConversion{
			ConversionReviewVersions: []string{"v1"},
			ClientConfig:             &apiextensionsv1.WebhookClientConfig{URL: &url, CABundle: certificateOf(c.Server)},
		},
	}
}

// TestWebhookConvertsEachStateOnce is that a webhook is asked once for each state of an object.
func TestWebhookConvertsEachStateOnce(t *testing.T) {
	s, c := newServer(t), newConverter(t)
	s.define(t, shelves, c.by)
	s.put(t, shelfKey+"old", old)
	read := func(path, want string) {
		t.Helper()
		a := s.get(t, path)
		if a.code != http.StatusOK {
			t.Fatalf("%s: %s", path, a)
		}
		contains(t, a.body, want)
	}
	read(shelvesV1+"/old", `"color":"red"`)
	read(shelvesV1, `"color":"red"`)
	if n := c.calls.Load(); n != 0 {
		t.Errorf("%d conversions of what is stored in the version that is read", n)
	}
	for range 5 {
		read(shelvesV2+"/old", `"colour":"red"`)
		read(shelvesV2, `"colour":"red"`)
	}
	if n := c.calls.Load(); n != 1 {
		t.Errorf("%d conversions of one object", n)
	}
	s.put(t, shelfKey+"old", strings.Replace(old, `"red"`, `"blue"`, 1))
	read(shelvesV2+"/old", `"colour":"blue"`)
	read(shelvesV2, `"colour":"blue"`)
	if n := c.calls.Load(); n != 2 {
		t.Errorf("%d conversions of two states", n)
	}
	contains(t, s.get(t, shelvesV2+"?fieldSelector=spec.colour%3Dblue").body, `"colour":"blue"`)
	contains(t, s.get(t, shelvesV2+"?fieldSelector=spec.colour%3Dred").body, `"items":[]`)
	event, object, _ := s.watch(t, shelvesV2+"?watch=1").next(t)
	contains(t, string(event)+object, "ADDED", `"colour":"blue"`)
}

// TestWebhookThatIsDownFailsOnlyWhatNeedsIt is that a webhook that is down fails the requests that need it, and
// leaves nothing behind.
func TestWebhookThatIsDownFailsOnlyWhatNeedsIt(t *testing.T) {
	s, c := newServer(t), newConverter(t)
	s.define(t, shelves, c.by)
	s.put(t, shelfKey+"old", old)
	c.down.Store(true)
	for _, path := range []string{shelvesV2 + "/old", shelvesV2} {
		a := s.get(t, path)
		if a.code != http.StatusInternalServerError {
			t.Errorf("%s: %s", path, a)
		}
		contains(t, a.body, "conversion webhook for example.com/v1, Kind=Shelf failed")
		if want := s.upstream(t, call{method: http.MethodGet, path: path}); want.code != a.code || want.body != a.body {
			t.Errorf("%s: upstream %s, larder %s", path, want, a)
		}
	}
	// Who does not need it is served, also of what is written meanwhile.
	w := s.watch(t, shelvesV1+"?watch=1")
	if _, object, _ := w.next(t); !strings.Contains(object, `"color":"red"`) {
		t.Errorf("watch: %s", object)
	}
	s.do(t, http.MethodPost, shelvesV1, "application/json", `{"apiVersion":"example.com/v1","kind":"Shelf","metadata":{"name":"new"},"spec":{"color":"green"}}`)
	if _, object, _ := w.next(t); !strings.Contains(object, `"color":"green"`) {
		t.Errorf("watch: %s", object)
	}
	contains(t, s.get(t, shelvesV1).body, `"color":"red"`, `"color":"green"`)
	contains(t, s.ask(t, call{method: http.MethodGet, path: shelvesV1, accept: "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"}).body, `"name":"new"`)

	c.down.Store(false)
	contains(t, s.get(t, shelvesV2+"/old").body, `"colour":"red"`)
	contains(t, s.get(t, shelvesV2).body, `"colour":"red"`, `"colour":"green"`)
}
