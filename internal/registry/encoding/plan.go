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

// NewPlanner returns a Planner for the built-in kinds. Conversion of a canonical object to the internal
// version and back adds only kind and apiVersion of claim templates, which are not in the protobuf
// (kubernetes pkg/apis/apps/v1/conversion.go).
func NewPlanner() *transcode.Planner {
	return transcode.NewPlanner(transcode.Typed{
		Owner: reflect.TypeFor[appsv1.StatefulSetSpec](),
		Field: "VolumeClaimTemplates",
		Kind:  corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"),
	})
}

// planOf returns the plan that writes items of a version in JSON. It returns nil if objects must be
// decoded: if whole objects are of another scheme, of a kind that no plan can express, or of another
// version than the canonical one.
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
	plan, err := c.planner.Plan(t, kind)
	if err != nil {
		return nil
	}
	return plan
}
