package customresources

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	apiextensionsfeatures "k8s.io/apiextensions-apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/larder-io/larder/httpapi/openapi"
)

// cachedList is a list that is made again only after CRDs have changed. There may be thousands of
// CRDs, and each request for a document needs the list.
type cachedList[T any] struct {
	mu   sync.Mutex
	at   uint64 // number of changes when the list was made
	list []T    // nil before the first get
}

// get returns the list as of a number of changes. The caller does not change it.
func (k *cachedList[T]) get(changes uint64, list func() []T) []T {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.list == nil || k.at != changes {
		k.at, k.list = changes, slices.Clip(list())
	}
	return k.list
}

// OpenAPIV2 returns one description for each CRD.
func (e *Extensions) OpenAPIV2() []openapi.Description[spec.Swagger] {
	return e.describedV2.get(e.published.Load(), e.listV2)
}

func (e *Extensions) listV2() []openapi.Description[spec.Swagger] {
	var list []openapi.Description[spec.Swagger]
	for s := range e.servings.Load().all() {
		crd := s.crd.Load()
		if !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) {
			continue
		}
		list = append(list, openapi.Description[spec.Swagger]{
			Name: crd.Name, State: s.state, Build: s.describeV2,
			Variants: func() []openapi.Variant[spec.Swagger] {
				return e.templatesV2.variants(crd, func(v *apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Served })
			},
		})
	}
	return list
}

func describeOptions(v2 bool) builder.Options {
	return builder.Options{
		V2:                      v2,
		IncludeSelectableFields: utilfeature.DefaultFeatureGate.Enabled(apiextensionsfeatures.CustomResourceFieldSelectors),
	}
}

// describeV2 describes all served versions, without the defaults of Go types, like the document of
// the built-in kinds.
func (s *serving) describeV2() (*spec.Swagger, error) {
	crd := s.crd.Load()
	all := new(spec.Swagger)
	for _, v := range crd.Spec.Versions {
		if !v.Served {
			continue
		}
		one, err := builder.BuildOpenAPIV2(crd, v.Name, describeOptions(true))
		if err != nil {
			return nil, fmt.Errorf("customresources: %w", err)
		}
		one.Definitions = handler.PruneDefaults(one.Definitions)
		if all, err = builder.MergeSpecs(all, one); err != nil {
			return nil, fmt.Errorf("customresources: %w", err)
		}
	}
	return all, nil
}

// OpenAPIV3 returns one description for each version of each group.
func (e *Extensions) OpenAPIV3() []openapi.Description[spec3.OpenAPI] {
	return e.describedV3.get(e.published.Load(), e.listV3)
}

func (e *Extensions) listV3() []openapi.Description[spec3.OpenAPI] {
	members := make(map[versioned][]*serving)
	for s := range e.servings.Load().all() {
		crd := s.crd.Load()
		if !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) {
			continue
		}
		for _, v := range crd.Spec.Versions {
			if v.Served {
				key := versioned{crd.Spec.Group, v.Name}
				members[key] = append(members[key], s)
			}
		}
	}
	list := make([]openapi.Description[spec3.OpenAPI], 0, len(members))
	for key, all := range members {
		list = append(list, openapi.Description[spec3.OpenAPI]{
			Name: "apis/" + key.group + "/" + key.version, State: stateOfAll(all),
			Build:    func() (*spec3.OpenAPI, error) { return describeV3(key.version, all) },
			Variants: func() []openapi.Variant[spec3.OpenAPI] { return e.variantsV3(key.version, all) },
		})
	}
	return list
}

// versioned is a version of a group.
type versioned struct{ group, version string }

// stateOfAll returns a string that differs between any two sets of servings.
func stateOfAll(all []*serving) string {
	states := make([]string, 0, len(all))
	for _, s := range all {
		states = append(states, s.state)
	}
	slices.Sort(states)
	return strings.Join(states, " ")
}

// variantsV3 describes one version of a group by templates, nil if they do not fit.
func (e *Extensions) variantsV3(version string, all []*serving) []openapi.Variant[spec3.OpenAPI] {
	var list []openapi.Variant[spec3.OpenAPI]
	for _, s := range all {
		made := e.templatesV3.variants(s.crd.Load(), func(v *apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Name == version })
		if made == nil {
			return nil
		}
		list = append(list, made...)
	}
	return list
}

// describeV3 describes one version of a group. It leaves out a CRD that cannot be described, and
// fails if none is left.
func describeV3(version string, all []*serving) (*spec3.OpenAPI, error) {
	var (
		documents []*spec3.OpenAPI
		failed    []error
	)
	for _, s := range all {
		one, err := builder.BuildOpenAPIV3(s.crd.Load(), version, describeOptions(false))
		if err != nil {
			failed = append(failed, err)
			continue
		}
		documents = append(documents, one)
	}
	if len(documents) == 0 {
		return nil, fmt.Errorf("customresources: %w", errors.Join(failed...))
	}
	merged, err := builder.MergeSpecsV3(documents...)
	if err != nil {
		return nil, fmt.Errorf("customresources: %w", err)
	}
	return merged, nil
}
