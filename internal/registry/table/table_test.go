package table_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/util/apihelpers"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/registrytest"
	"github.com/larder-io/larder/internal/registry/storage"
	"github.com/larder-io/larder/internal/registry/wire"
)

// TestTablesMatchUpstream compares Tables with those that upstream's handlers make of the same objects.
func TestTablesMatchUpstream(t *testing.T) {
	s := registrytest.New(t, nil)
	s.Start(t)
	ctx := t.Context()
	for _, name := range []string{"one", "two"} {
		config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Data: map[string]string{"k": name}}
		if _, err := s.Client.CoreV1().ConfigMaps("default").Create(ctx, config, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	v := s.Registry.Endpoint(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, "").View
	scope := storage.Scope{Namespace: "default"}
	listing, err := v.Resource.List(ctx, storage.ListRequest{Scope: scope}, nil)
	if err != nil {
		t.Fatal(err)
	}
	one, err := v.Resource.Get(ctx, storage.Scope{Namespace: "default", Name: "one"}, "")
	if err != nil {
		t.Fatal(err)
	}
	const path = "/api/v1/namespaces/default/configmaps"
	for _, version := range []string{"v1", "v1beta1"} {
		for _, include := range []string{"", "None", "Metadata", "Object"} {
			t.Run(version+"/"+include, func(t *testing.T) {
				gv := schema.GroupVersion{Group: "meta.k8s.io", Version: version}
				options := &metav1.TableOptions{IncludeObject: metav1.IncludeObjectPolicy(include)}
				get := func(path string, params ...string) []byte {
					req := s.Client.CoreV1().RESTClient().Get().AbsPath(path).Param("includeObject", include)
					for i := 0; i < len(params); i += 2 {
						req.Param(params[i], params[i+1])
					}
					body, err := req.SetHeader("Accept", fmt.Sprintf("application/json;as=Table;v=%s;g=meta.k8s.io", version)).DoRaw(ctx)
					if err != nil {
						t.Fatal(err)
					}
					return body
				}
				table, err := v.Table(ctx, listing.Objects, listing.Meta, options, gv)
				if err != nil {
					t.Fatal(err)
				}
				sameTable(t, table, gv, get(path, "resourceVersion", fmt.Sprint(listing.Meta.Revision), "resourceVersionMatch", "Exact"))
				if table, err = v.TableOf(ctx, one, 0, options, gv); err != nil {
					t.Fatal(err)
				}
				sameTable(t, table, gv, get(path+"/one"))
			})
		}
	}
	if _, err := v.Table(ctx, listing.Objects, listing.Meta, &metav1.TableOptions{IncludeObject: "All"}, metav1.SchemeGroupVersion); err == nil {
		t.Error("an unknown includeObject policy was accepted")
	}
}

func sameTable(t *testing.T, table *metav1.Table, gv schema.GroupVersion, want []byte) {
	t.Helper()
	codecs := apihelpers.GetMetaInternalVersionCodecs()
	info, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	var got bytes.Buffer
	if err := codecs.EncoderForVersion(info.Serializer, gv).Encode(table, &got); err != nil {
		t.Fatal(err)
	}
	// The ages differ, because the two were not printed at the same time.
	age := regexp.MustCompile(`"\d+s"`)
	have, want := age.ReplaceAll(got.Bytes(), []byte(`"AGE"`)), age.ReplaceAll(want, []byte(`"AGE"`))
	if !json.Valid(want) || !bytes.Equal(have, want) {
		t.Errorf("Table:\n got %s\nwant %s", have, want)
	}
}

// TestTablesOfCachedRowsAreTheSame checks that a Table from cached rows equals one printed at once.
func TestTablesOfCachedRowsAreTheSame(t *testing.T) {
	s := registrytest.New(t, nil)
	s.Start(t)
	ctx := t.Context()
	for i := range 600 {
		config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("c%03d", i), Namespace: "default", Annotations: map[string]string{"a": "<&>"}}}
		if _, err := s.Client.CoreV1().ConfigMaps("default").Create(ctx, config, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	v := s.Registry.Endpoint(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, "").View
	listing, err := v.Resource.List(ctx, storage.ListRequest{Scope: storage.Scope{Namespace: "default"}, Limit: 599}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if listing.Meta.Continue == "" {
		t.Fatal("the list has no continue token")
	}
	for _, version := range []string{"v1", "v1beta1"} {
		gv := schema.GroupVersion{Group: "meta.k8s.io", Version: version}
		for _, n := range []int{1, 256, 257, 599} {
			objects := listing.Objects[:n]
			for _, include := range []metav1.IncludeObjectPolicy{metav1.IncludeMetadata, metav1.IncludeObject} {
				options := &metav1.TableOptions{IncludeObject: include}
				table, err := v.Table(ctx, objects, listing.Meta, options, gv)
				if err != nil {
					t.Fatal(err)
				}
				sameTable(t, table, gv, rowsOf(t, v, objects, listing.Meta, options, gv))
			}
		}
	}
	for include, objects := range map[metav1.IncludeObjectPolicy]int{"All": 5, metav1.IncludeMetadata: 0} {
		if rows, err := v.Rows(ctx, listing.Objects[:objects], listing.Meta, &metav1.TableOptions{IncludeObject: include}, metav1.SchemeGroupVersion); rows != nil || err != nil {
			t.Errorf("includeObject %q, %d objects: rows %v, error %v; want nil, nil", include, objects, rows, err)
		}
	}
}

// rowsOf writes a Table from cached rows. It returns nil if v has no such rows.
func rowsOf(t *testing.T, v *registry.View, objects []*cache.Object, list wire.ListMeta, options *metav1.TableOptions, gv schema.GroupVersion) []byte {
	t.Helper()
	rows, err := v.Rows(t.Context(), objects, list, options, gv)
	if err != nil {
		t.Fatal(err)
	}
	if rows == nil {
		return nil
	}
	var body []byte
	for range 2 { // a second Write writes the same
		body = body[:0]
		if err := rows.Write(func(p []byte) { body = append(body, p...) }); err != nil {
			t.Fatal(err)
		}
		if size, err := rows.Size(); len(body) != size || err != nil {
			t.Fatalf("wrote %d bytes; Size returned %d, error %v", len(body), size, err)
		}
	}
	return body
}
