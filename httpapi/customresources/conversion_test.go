package customresources_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
)

// converter is a conversion webhook between v1, which has spec.color, and v2, which has spec.colour and a label with
// the same value.
type converter struct {
	*httptest.Server
	down  atomic.Bool
	pause atomic.Int64 // delays responses, in nanoseconds
	calls atomic.Int64
	held  sync.RWMutex // locked while the webhook hangs
	free  atomic.Int64 // the number of calls that do not hang
}

func newConverter(t *testing.T) *converter {
	c := new(converter)
	c.Server = httptest.NewTLSServer(c)
	t.Cleanup(c.Close)
	return c
}

// ServeHTTP responds to a ConversionReview, or with 503 while the webhook is down.
func (c *converter) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	c.calls.Add(1)
	if c.free.Add(-1) < 0 {
		c.held.RLock()
		defer c.held.RUnlock()
	}
	if pause := c.pause.Load(); pause > 0 {
		ctx, cancel := context.WithTimeout(req.Context(), time.Duration(pause))
		defer cancel()
		<-ctx.Done()
	}
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
		metadata, _ := object["metadata"].(map[string]any)
		labels, _ := metadata["labels"].(map[string]any)
		if delete(labels, "tint"); to == "colour" && spec[to] != nil {
			if labels == nil {
				labels = make(map[string]any)
				metadata["labels"] = labels
			}
			labels["tint"] = spec[to]
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
		"response": map[string]any{"uid": review.Request.UID, "result": map[string]any{"status": "Success"}, "convertedObjects": review.Request.Objects},
	})
}

// by makes c the conversion webhook of a CRD.
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

// TestWebhookConvertsEachStateOnce checks that each state of an object is converted only once.
func TestWebhookConvertsEachStateOnce(t *testing.T) {
	s, c := newServer(t), newConverter(t)
	s.define(t, shelves, c.by)
	s.put(t, shelfKey+"old", old)
	read := func(path, want string) {
		t.Helper()
		a := s.get(t, path)
		if a.code != http.StatusOK {
			t.Fatalf("%s: got %s, want 200", path, a)
		}
		contains(t, a.body, want)
	}
	read(shelvesV1+"/old", `"color":"red"`)
	read(shelvesV1, `"color":"red"`)
	if n := c.calls.Load(); n != 0 {
		t.Errorf("%d conversions of objects that are stored in the requested version", n)
	}
	for range 5 {
		read(shelvesV2+"/old", `"colour":"red"`)
		read(shelvesV2, `"colour":"red"`)
	}
	if n := c.calls.Load(); n != 1 {
		t.Errorf("%d conversions of one object, want 1", n)
	}
	s.put(t, shelfKey+"old", strings.Replace(old, `"red"`, `"blue"`, 1))
	read(shelvesV2+"/old", `"colour":"blue"`)
	read(shelvesV2, `"colour":"blue"`)
	if n := c.calls.Load(); n != 2 {
		t.Errorf("%d conversions of two states, want 2", n)
	}
	contains(t, s.get(t, shelvesV2+"?fieldSelector=spec.colour%3Dblue").body, `"colour":"blue"`)
	contains(t, s.get(t, shelvesV2+"?fieldSelector=spec.colour%3Dred").body, `"items":[]`)
	calls := c.calls.Load()
	for _, query := range []string{"", "", "&fieldSelector=spec.colour%3Dblue", "&labelSelector=tint%3Dblue"} {
		event, object, _ := s.watch(t, shelvesV2+"?watch=1"+query).next(t)
		contains(t, string(event)+object, "ADDED", `"colour":"blue"`)
	}
	if n := c.calls.Load(); n != calls {
		t.Errorf("%d conversions for watches of objects that were converted for lists", n-calls)
	}
}

// TestNoDefaultsInConvertedObjects checks that all reads of an object agree, although the schema has a default for a
// field that the webhook does not set.
func TestNoDefaultsInConvertedObjects(t *testing.T) {
	s, c := newServer(t), newConverter(t)
	s.define(t, shelves, c.by, func(d *apiextensionsv1.CustomResourceDefinition) {
		for i := range d.Spec.Versions {
			d.Spec.Versions[i].Schema.OpenAPIV3Schema.Properties["spec"].Properties["size"+d.Spec.Versions[i].Name] = apiextensionsv1.JSONSchemaProps{
				Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"large"`)},
			}
			d.Spec.Versions[i].AdditionalPrinterColumns = []apiextensionsv1.CustomResourceColumnDefinition{
				{Name: "Size", Type: "string", JSONPath: ".spec.size" + d.Spec.Versions[i].Name},
			}
		}
	})
	s.put(t, shelfKey+"old", old)
	contains(t, s.get(t, shelvesV1+"/old").body, `"sizev1":"large"`)
	const metadata, table = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "application/json;as=Table;v=v1;g=meta.k8s.io"
	for _, path := range []string{"/old", "", "?labelSelector=tint%3Dred", "?fieldSelector=spec.colour%3Dred"} {
		for _, accept := range []string{"", metadata, table} {
			if path == "/old" && accept == metadata {
				continue
			}
			a := s.send(t, call{method: http.MethodGet, path: shelvesV2 + path, accept: accept})
			contains(t, a.body, `"name":"old"`)
			lacks(t, a.body, "large")
		}
	}
	for _, query := range []string{"", "&labelSelector=tint%3Dred", "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"} {
		_, object, _ := s.watch(t, shelvesV2+"?watch=1"+query).next(t)
		contains(t, object, `"colour":"red"`)
		lacks(t, object, "large")
	}
}

// TestPagesOfConvertedObjects checks that lists whose selectors match converted objects have pages, and convert no more
// objects than a page needs. A list at any revision has no pages, as in kube-apiserver's cache.
func TestPagesOfConvertedObjects(t *testing.T) {
	s, c := newServer(t), newConverter(t)
	s.define(t, shelves, c.by)
	const objects = 20
	for i := range objects {
		color := []string{"red", "blue"}[i/3%2]
		s.put(t, fmt.Sprintf("%sshelf-%02d", shelfKey, i), strings.NewReplacer(`"name":"old"`, fmt.Sprintf(`"name":"shelf-%02d"`, i), `"red"`, `"`+color+`"`).Replace(old))
	}
	type list struct {
		Metadata struct {
			Continue           string
			RemainingItemCount *int64
		}
		Items []struct{ Metadata struct{ Name string } }
	}
	get := func(path string) (l list) {
		t.Helper()
		must(t, json.Unmarshal([]byte(s.get(t, path).body), &l))
		return l
	}
	if page := get(shelvesV2 + "?labelSelector=tint%3Dred&limit=2"); len(page.Items) != 2 || page.Metadata.Continue == "" || c.calls.Load() != 2 {
		t.Errorf("%d conversions for a page of two: %+v", c.calls.Load(), page)
	}
	for _, selector := range []string{"labelSelector=tint%3Dred", "fieldSelector=spec.colour%3Dblue", "labelSelector=tint%3Dgreen", "labelSelector=tint"} {
		whole := get(shelvesV2 + "?" + selector)
		for limit := 1; limit <= objects+1; limit++ {
			var paged list
			for next := ""; ; {
				page := get(fmt.Sprintf("%s?%s&limit=%d&continue=%s", shelvesV2, selector, limit, next))
				if paged.Items = append(paged.Items, page.Items...); page.Metadata.Continue == "" {
					break
				}
				if next = page.Metadata.Continue; len(page.Items) != limit || page.Metadata.RemainingItemCount != nil {
					t.Fatalf("%s, limit %d: %+v", selector, limit, page)
				}
			}
			if fmt.Sprint(paged.Items) != fmt.Sprint(whole.Items) {
				t.Errorf("%s, limit %d: %v, want %v", selector, limit, paged.Items, whole.Items)
			}
		}
		if any := get(shelvesV2 + "?resourceVersion=0&limit=1&" + selector); fmt.Sprint(any.Items) != fmt.Sprint(whole.Items) {
			t.Errorf("%s at any revision: %v, want %v", selector, any.Items, whole.Items)
		}
	}
}

// selection is a list, and the events that a watch with the same selectors should send.
type selection struct {
	path     string
	revision string
	listed   map[string]map[string]any // by name
	wanted   []string
}

// list lists, and adds the differences from the last list to the wanted events.
func (l *selection) list(t *testing.T, s *server) {
	t.Helper()
	var list struct {
		Metadata struct{ ResourceVersion string }
		Items    []map[string]any
	}
	must(t, json.Unmarshal([]byte(s.get(t, l.path).body), &list))
	now := make(map[string]map[string]any)
	for _, item := range list.Items {
		metadata, _ := item["metadata"].(map[string]any)
		now[fmt.Sprint(metadata["name"])] = item
	}
	for name, was := range l.listed {
		if now[name] == nil {
			l.wanted = append(l.wanted, eventText("DELETED", was))
		}
	}
	for name, item := range now {
		switch was := l.listed[name]; {
		case was == nil && l.revision != "":
			l.wanted = append(l.wanted, eventText("ADDED", item))
		case was != nil && !reflect.DeepEqual(was, item):
			l.wanted = append(l.wanted, eventText("MODIFIED", item))
		}
	}
	if l.listed = now; l.revision == "" {
		l.revision = list.Metadata.ResourceVersion
	}
}

// eventText describes an event without its resourceVersion, which a deletion changes.
func eventText(kind string, object map[string]any) string {
	object = runtime.DeepCopyJSON(object)
	if metadata, ok := object["metadata"].(map[string]any); ok {
		delete(metadata, "resourceVersion")
	}
	return fmt.Sprint(kind, object)
}

// TestWatchesSelectAsListsDo checks that a watch sends exactly the changes between two lists with the same
// selectors, with and without a conversion webhook.
func TestWatchesSelectAsListsDo(t *testing.T) {
	for name, by := range map[string]func(*testing.T, *apiextensionsv1.CustomResourceDefinition){
		"webhook": func(t *testing.T, d *apiextensionsv1.CustomResourceDefinition) { newConverter(t).by(d) },
		"none":    func(*testing.T, *apiextensionsv1.CustomResourceDefinition) {},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			s.define(t, shelves, func(d *apiextensionsv1.CustomResourceDefinition) { by(t, d) })
			var all []*selection
			for _, selector := range []string{
				"label=tint%3Dred", "label=tint%21%3Dred", "label=tint", "label=!tint,n%3D1", "label=n%3D1", "label=n+in+(0,1),tint+notin+(red)",
				"field=spec.colour%3Dred", "field=spec.colour%21%3Dred", "field=spec.colour%3Dblue,metadata.name%3Ds1", "field=metadata.name%3Ds2",
			} {
				selector = strings.Replace(selector, "=", "Selector=", 1)
				all = append(all, &selection{path: shelvesV2 + "?" + selector},
					&selection{path: shelvesV1 + "?" + strings.Replace(selector, "colour", "color", 1)})
			}
			for _, l := range all {
				l.list(t, s)
			}
			random := rand.New(rand.NewPCG(1, 2))
			colors := []string{"red", "blue", "green"}
			for range 30 {
				path, field, version := shelvesV1, "color", "v1"
				if random.IntN(2) == 0 {
					path, field, version = shelvesV2, "colour", "v2"
				}
				shelf, color, n := fmt.Sprintf("s%d", random.IntN(4)), colors[random.IntN(3)], random.IntN(3)
				object := fmt.Sprintf(`{"apiVersion":"example.com/%s","kind":"Shelf","metadata":{"name":"%s","labels":{"n":"%d"}},"spec":{"%s":"%s"}}`, version, shelf, n, field, color)
				switch exists := s.get(t, path+"/"+shelf).code == http.StatusOK; {
				case !exists:
					s.do(t, http.MethodPost, path, "application/json", object)
				case random.IntN(3) == 0:
					s.do(t, http.MethodDelete, path+"/"+shelf, "", "")
				default:
					s.do(t, http.MethodPatch, path+"/"+shelf, "application/merge-patch+json", object)
				}
				for _, l := range all {
					l.list(t, s)
				}
			}
			for _, l := range all {
				w := s.watch(t, l.path+"&watch=1&resourceVersion="+l.revision)
				for i, want := range l.wanted {
					kind, text, _ := w.next(t)
					var object map[string]any
					must(t, json.Unmarshal([]byte(text), &object))
					if got := eventText(string(kind), object); got != want {
						t.Fatalf("%s: event %d is\n%s, want\n%s", l.path, i, got, want)
					}
				}
				initial := s.watch(t, l.path+"&watch=1")
				for range l.listed {
					kind, text, _ := initial.next(t)
					var object map[string]any
					must(t, json.Unmarshal([]byte(text), &object))
					if got := eventText(string(kind), object); !slices.ContainsFunc(slices.Collect(maps.Values(l.listed)), func(o map[string]any) bool { return got == eventText("ADDED", o) }) {
						t.Errorf("%s: unexpected initial event %s", l.path, got)
					}
				}
			}
		})
	}
}

// TestWebhookThatIsDownFailsOnlyConversions checks that while the webhook is down, only requests that need conversion
// fail, and that they succeed afterwards.
func TestWebhookThatIsDownFailsOnlyConversions(t *testing.T) {
	s, c := newServer(t), newConverter(t)
	s.define(t, shelves, c.by)
	s.put(t, shelfKey+"old", old)
	c.down.Store(true)
	for _, path := range []string{shelvesV2 + "/old", shelvesV2} {
		a := s.get(t, path)
		if a.code != http.StatusInternalServerError {
			t.Errorf("%s: got %s, want 500", path, a)
		}
		contains(t, a.body, "conversion webhook for example.com/v1, Kind=Shelf failed")
		if want := s.upstream(t, call{method: http.MethodGet, path: path}); want.code != a.code || want.body != a.body {
			t.Errorf("%s: upstream %s, larder %s", path, want, a)
		}
	}
	// Requests in the stored version succeed and have later writes.
	w := s.watch(t, shelvesV1+"?watch=1")
	if _, object, _ := w.next(t); !strings.Contains(object, `"color":"red"`) {
		t.Errorf("first watch event: %s", object)
	}
	s.do(t, http.MethodPost, shelvesV1, "application/json", `{"apiVersion":"example.com/v1","kind":"Shelf","metadata":{"name":"new"},"spec":{"color":"green"}}`)
	if _, object, _ := w.next(t); !strings.Contains(object, `"color":"green"`) {
		t.Errorf("second watch event: %s", object)
	}
	contains(t, s.get(t, shelvesV1).body, `"color":"red"`, `"color":"green"`)
	contains(t, s.send(t, call{method: http.MethodGet, path: shelvesV1, accept: "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"}).body, `"name":"new"`)

	c.down.Store(false)
	contains(t, s.get(t, shelvesV2+"/old").body, `"colour":"red"`)
	contains(t, s.get(t, shelvesV2).body, `"colour":"red"`, `"colour":"green"`)
}

// TestReadsLeaveAWebhookThatHangs checks that if the webhook hangs, reads of an object share one call, and end at their
// deadlines.
func TestReadsLeaveAWebhookThatHangs(t *testing.T) {
	s, c := newServer(t), newConverter(t)
	s.define(t, shelves, c.by)
	s.put(t, shelfKey+"old", old)
	contains(t, s.get(t, shelvesV1+"/old").body, `"color":"red"`)
	c.held.Lock()
	release := sync.OnceFunc(c.held.Unlock)
	defer release()
	for _, path := range []string{shelvesV2 + "/old?", shelvesV2 + "?"} {
		for _, accept := range []string{"", "", "application/json;as=Table;v=v1;g=meta.k8s.io"} {
			a := s.send(t, call{method: http.MethodGet, path: path + "timeout=100ms", accept: accept})
			if a.code != http.StatusGatewayTimeout {
				t.Fatalf("%s as %q: got %s, want 504", path, accept, a)
			}
		}
	}
	release()
	contains(t, s.get(t, shelvesV2+"/old").body, `"colour":"red"`)
	if n := c.calls.Load(); n != 1 {
		t.Errorf("%d conversions of one object, want 1", n)
	}
}

// TestWritesLeaveAWebhookThatHangs checks that if any of a write's calls to the webhook hangs, the write ends at its
// deadline and has stored nothing.
func TestWritesLeaveAWebhookThatHangs(t *testing.T) {
	s, c := newServer(t), newConverter(t)
	s.define(t, shelves, c.by)
	const body = `{"apiVersion":"example.com/v2","kind":"Shelf","metadata":{"name":"NAME"},"spec":{"colour":"blue"}}`
	for _, write := range []call{
		{method: http.MethodPost, path: shelvesV2, kind: "application/json", body: strings.Replace(body, `"name":"NAME"`, `"generateName":"new-"`, 1)},
		{method: http.MethodPut, path: shelvesV2 + "/old", kind: "application/json", body: strings.Replace(body, "NAME", "old", 1)},
		{method: http.MethodPatch, path: shelvesV2 + "/old", kind: "application/merge-patch+json", body: `{"spec":{"colour":"blue"}}`},
		{method: http.MethodPatch, path: shelvesV2 + "/old", kind: "application/json-patch+json", body: `[{"op":"replace","path":"/spec/colour","value":"blue"}]`},
		{method: http.MethodPatch, path: shelvesV2 + "/old?fieldManager=m&force=true", kind: "application/apply-patch+yaml", body: strings.Replace(body, "NAME", "old", 1)},
		{method: http.MethodDelete, path: shelvesV2 + "/old"},
		{method: http.MethodDelete, path: shelvesV2},
	} {
		name := write.method + " " + write.path + " " + write.kind
		separator := "?"
		if strings.Contains(write.path, "?") {
			separator = "&"
		}
		write.path += separator + "timeout=100ms"
		for free, done := int64(0), false; !done; free++ {
			before := s.put(t, shelfKey+"old", strings.Replace(old, "red", fmt.Sprintf("red%d", free), 1))
			now := write
			if write.method == http.MethodPut {
				now.body = strings.Replace(write.body, `"metadata":{`, fmt.Sprintf(`"metadata":{"resourceVersion":"%d",`, before), 1)
			}
			c.free.Store(free)
			c.held.Lock()
			began := time.Now()
			a := s.send(t, now)
			took, hung := time.Since(began), c.free.Load() < 0
			c.held.Unlock()
			done = a.code < 300
			item, _, _, err := s.store.Get(t.Context(), shelfKey+"old")
			switch {
			case took > 20*time.Second: // upstream's client waits for 30 s
				t.Fatalf("%s waited %v for call %d to the webhook", name, took, free)
			case done && free == 0:
				t.Errorf("%s calls no webhook", name)
			case !done && a.code != http.StatusGatewayTimeout:
				t.Fatalf("%s, call %d hangs: got %s, want 504", name, free, a)
			case !done && hung && (err != nil || item.Revision != before):
				t.Errorf("%s, call %d hangs: revision %d, %v, want %d", name, free, item.Revision, err, before)
			}
		}
	}
}

// TestUnconvertibleObjectsAreDeletedUnread deletes an object that the webhook cannot convert, as a feature gate allows.
func TestUnconvertibleObjectsAreDeletedUnread(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.AllowUnsafeMalformedObjectDeletion, true)
	s, c := newServer(t), newConverter(t)
	s.define(t, shelves, c.by)
	s.put(t, shelfKey+"old", old)
	c.down.Store(true)
	const unread = `{"kind":"DeleteOptions","apiVersion":"v1","ignoreStoreReadErrorWithClusterBreakingPotential":true}`
	if a := s.send(t, call{method: http.MethodDelete, path: shelvesV2 + "/old", kind: "application/json", body: unread}); a.code != http.StatusOK {
		t.Errorf("delete: %s", a)
	}
	if left, err := s.store.Range(t.Context(), everythingBelow(shelfKey)); err != nil || len(left.Items) > 0 {
		t.Errorf("%d objects are left, error %v", len(left.Items), err)
	}
}

// TestListsThatNeedAWebhook checks that if the webhook fails, a list fails before its first byte is sent, whatever its
// size, page, projection or format. If the webhook is slow, the list ends at its deadline.
func TestListsThatNeedAWebhook(t *testing.T) {
	s, c := newServer(t), newConverter(t)
	s.define(t, shelves, c.by)
	const objects = 40
	for i := range objects {
		name := fmt.Sprintf("shelf-%02d", i)
		s.put(t, shelfKey+name, strings.Replace(strings.Replace(old, `"name":"old"`, fmt.Sprintf(`"name":%q`, name), 1),
			`"any":[1]`, fmt.Sprintf(`"any":[%q]`, strings.Repeat("a", 20_000)), 1))
	}
	contains(t, s.get(t, shelvesV1).body, `"name":"shelf-39"`)
	const metadata, table = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "application/json;as=Table;v=v1;g=meta.k8s.io"
	c.down.Store(true)
	for _, a := range []call{{path: shelvesV2}, {path: shelvesV2 + "?limit=30"}, {path: shelvesV2, accept: metadata}, {path: shelvesV2, accept: table}, {path: shelvesV2 + "?pretty=true"}} {
		a.method = http.MethodGet
		if got := s.send(t, a); got.code != http.StatusInternalServerError || !strings.Contains(got.body, "conversion webhook for example.com/v1, Kind=Shelf failed") {
			t.Errorf("%+v: status %d, %d bytes", a, got.code, len(got.body))
		}
	}
	c.down.Store(false)
	c.pause.Store(int64(100 * time.Millisecond))
	if got := s.get(t, shelvesV2+"?timeout=500ms"); got.code != http.StatusGatewayTimeout {
		t.Errorf("with a slow webhook: status %d, %d bytes", got.code, len(got.body))
	}
	c.pause.Store(0)
	if got := s.get(t, shelvesV2); got.code != http.StatusOK || strings.Count(got.body, `"colour":"red"`) != objects {
		t.Errorf("with the webhook's response: status %d, %d bytes", got.code, len(got.body))
	}
}
