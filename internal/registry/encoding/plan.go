package encoding

import (
	"reflect"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/larder-io/larder/internal/registry/transcode"
)

// NewPlanner makes the plans of all built-in kinds. Conversion of a canonical object to the
// internal version and back adds nothing but kind and apiVersion of claim templates, which
// are not in the protobuf (kubernetes pkg/apis/apps/v1/conversion.go).
func NewPlanner() *transcode.Planner {
	return transcode.NewPlanner(transcode.Typed{
		Owner: reflect.TypeFor[appsv1.StatefulSetSpec](),
		Field: "VolumeClaimTemplates",
		Kind:  corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"),
	})
}

// planOf returns the plan by which items of a version are written in JSON. It returns nil
// where objects have to be decoded: whole ones of other schemes than the built-in one, of
// kinds that no plan can express, and of other versions than the canonical one.
func (c *Codec) planOf(gv schema.GroupVersion, projection Projection) *transcode.Plan {
	if c.custom != nil || c.planner == nil {
		return nil
	}
	t, kind := reflect.TypeFor[metav1.PartialObjectMetadata](), schema.GroupVersionKind{}
	switch {
	case projection != Full:
		partial := partialKind(projection)
		kind = schema.FromAPIVersionAndKind(partial.APIVersion, partial.Kind)
	case gv != c.canonical.GroupVersion() || c.scheme != legacyscheme.Scheme:
		return nil
	default:
		obj, err := c.scheme.New(c.canonical)
		if err != nil {
			return nil
		}
		t = reflect.TypeOf(obj).Elem()
	}
	plan, err := c.planner.PlanOf(t, kind)
	if err != nil {
		return nil
	}
	return plan
}
