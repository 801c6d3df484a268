package customresources_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/larder-io/larder/internal/proctest"
)

// TestNamesAreUniqueInTheirGroup checks that a CRD's kind is not accepted while another CRD of the group has it, and
// that groups do not affect each other.
func TestNamesAreUniqueInTheirGroup(t *testing.T) {
	s := newServer(t)
	client := s.crds.ApiextensionsV1().CustomResourceDefinitions()
	first := s.define(t, shelves)
	other := first.DeepCopy()
	other.ObjectMeta = metav1.ObjectMeta{Name: "boards.example.com"}
	other.Spec.Names.Plural, other.Spec.Names.Singular, other.Spec.Names.ShortNames = "boards", "board", nil
	other.Status = apiextensionsv1.CustomResourceDefinitionStatus{}
	elsewhere := first.DeepCopy()
	elsewhere.ObjectMeta = metav1.ObjectMeta{Name: strings.Replace(first.Name, "example.com", "elsewhere.example.com", 1)}
	elsewhere.Spec.Group, elsewhere.Status = "elsewhere.example.com", apiextensionsv1.CustomResourceDefinitionStatus{}
	for _, d := range []*apiextensionsv1.CustomResourceDefinition{other, elsewhere} {
		_, err := client.Create(t.Context(), d, metav1.CreateOptions{})
		must(t, err)
	}
	accepted := func(name string, want bool) {
		t.Helper()
		proctest.Eventually(t, "the names of "+name+" are accepted or rejected", func() error {
			d, err := client.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if c := apihelpers.FindCRDCondition(d, apiextensionsv1.NamesAccepted); c == nil || (c.Status == apiextensionsv1.ConditionTrue) != want {
				return fmt.Errorf("%+v", c)
			}
			return nil
		})
	}
	accepted(other.Name, false)
	accepted(elsewhere.Name, true)
	must(t, client.Delete(t.Context(), first.Name, metav1.DeleteOptions{}))
	accepted(other.Name, true)
}

// TestDocumentsFollowCRDs checks that the OpenAPI documents follow creations, changes and deletions of CRDs.
func TestDocumentsFollowCRDs(t *testing.T) {
	s := newServer(t)
	described := func(path, text string, want bool) {
		t.Helper()
		proctest.Eventually(t, fmt.Sprintf("%s contains %q: %t", path, text, want), func() error {
			if a := s.get(t, path); a.code != http.StatusOK || strings.Contains(a.body, text) != want {
				return fmt.Errorf("status %d, %d bytes", a.code, len(a.body))
			}
			return nil
		})
	}
	for range 2 {
		described("/openapi/v2", "com.example.v1.Shelf", false)
		described("/openapi/v3", "example.com", false)
		s.define(t, shelves)
		for _, path := range []string{"/openapi/v2", "/openapi/v3/apis/example.com/v1"} {
			described(path, "com.example.v1.Shelf", true)
		}
		s.change(t, "shelves.example.com", describe("a changed description"))
		for _, path := range []string{"/openapi/v2", "/openapi/v3/apis/example.com/v1"} {
			described(path, "a changed description", true)
		}
		must(t, s.crds.ApiextensionsV1().CustomResourceDefinitions().Delete(t.Context(), "shelves.example.com", metav1.DeleteOptions{}))
	}
}

// TestNamesAndEstablishmentAreOneWrite checks that one update accepts the names of a new CRD and establishes it;
// upstream needs two. A CRD with a conversion webhook is established by another update.
func TestNamesAndEstablishmentAreOneWrite(t *testing.T) {
	accepted := []string{"NamesAccepted True NoConflicts", "Established True InitialNamesAccepted"}
	for _, c := range []struct {
		name   string
		change func(*apiextensionsv1.CustomResourceDefinition)
		want   [][]string
	}{
		{"plain", func(*apiextensionsv1.CustomResourceDefinition) {}, [][]string{nil, accepted}},
		{"webhook", newConverter(t).by, [][]string{nil, {accepted[0], "Established False Installing"}, accepted}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newServer(t)
			client := s.crds.ApiextensionsV1().CustomResourceDefinitions()
			w, err := client.Watch(t.Context(), metav1.ListOptions{})
			must(t, err)
			defer w.Stop()
			crd := s.define(t, shelves, c.change)
			for i, want := range c.want {
				now, ok := (<-w.ResultChan()).Object.(*apiextensionsv1.CustomResourceDefinition)
				if !ok {
					t.Fatal("the watch of CRDs ended")
				}
				var got []string
				for _, c := range now.Status.Conditions {
					got = append(got, fmt.Sprintf("%s %s %s", c.Type, c.Status, c.Reason))
				}
				if !slices.Equal(got, want) {
					t.Errorf("state %d: conditions %q, want %q", i, got, want)
				}
				if i == len(c.want)-1 && now.ResourceVersion != crd.ResourceVersion {
					t.Errorf("state %d is not established", i)
				}
			}
		})
	}
}
