package writes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/endpoints/handlers/fieldmanager"
	"k8s.io/apiserver/pkg/warning"
)

// plugin is an admission chain of one plugin.
type plugin func(metav1.Object) error

func (plugin) Handles(admission.Operation) bool { return true }

func (p plugin) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	object, err := meta.Accessor(a.GetObject())
	if err != nil {
		return nil
	}
	return p(object)
}

// warnings records the warnings that clients would get.
type warnings []string

func (w *warnings) AddWarning(_, text string) { *w = append(*w, text) }

// randomManagedFields returns random entries like those of a field manager.
func randomManagedFields(random *rand.Rand) []metav1.ManagedFieldsEntry {
	entries := make([]metav1.ManagedFieldsEntry, random.Intn(6)) // more than there is room for without a copy
	for i := range entries {
		at := metav1.NewTime(time.Unix(random.Int63n(1<<30), 0))
		entries[i] = metav1.ManagedFieldsEntry{
			Manager: fmt.Sprint("manager-", i), APIVersion: "v1", Time: &at, FieldsType: "FieldsV1",
			Operation: []metav1.ManagedFieldsOperationType{"Apply", "Update"}[random.Intn(2)],
			FieldsV1:  metav1.NewFieldsV1(fmt.Sprintf(`{"f:metadata":{"f:labels":{"f:%d":{}}}}`, random.Intn(9))),
		}
	}
	return entries
}

// anEntry returns a change that calls change for one of the entries.
func anEntry(change func(*metav1.ManagedFieldsEntry)) func(*rand.Rand, metav1.Object) error {
	return func(random *rand.Rand, o metav1.Object) error {
		if entries := o.GetManagedFields(); len(entries) > 0 {
			change(&entries[random.Intn(len(entries))])
		}
		return nil
	}
}

// pluginChanges are actions of a plugin: none, valid and invalid changes of managedFields, and a refusal.
var pluginChanges = map[string]func(*rand.Rand, metav1.Object) error{
	"nothing": func(*rand.Rand, metav1.Object) error { return nil },
	"label":   func(_ *rand.Rand, o metav1.Object) error { o.SetLabels(map[string]string{"a": "b"}); return nil },
	"refuses": func(*rand.Rand, metav1.Object) error { return errors.New("no") },
	"clears":  func(_ *rand.Rand, o metav1.Object) error { o.SetManagedFields(nil); return nil },
	"copies": func(_ *rand.Rand, o metav1.Object) error {
		o.SetManagedFields(append([]metav1.ManagedFieldsEntry(nil), o.GetManagedFields()...))
		return nil
	},
	"appends wrongly": func(_ *rand.Rand, o metav1.Object) error {
		o.SetManagedFields(append(o.GetManagedFields(), metav1.ManagedFieldsEntry{Operation: "Delete"}))
		return nil
	},
	"shortens": func(_ *rand.Rand, o metav1.Object) error {
		if entries := o.GetManagedFields(); len(entries) > 0 {
			o.SetManagedFields(entries[:len(entries)-1])
		}
		return nil
	},
	"replaces an entry of an unstructured object": func(_ *rand.Rand, o metav1.Object) error {
		if u, ok := o.(*unstructured.Unstructured); ok && len(o.GetManagedFields()) > 0 {
			u.Object["metadata"].(map[string]any)["managedFields"].([]any)[0] = map[string]any{"operation": "Guess"}
		}
		return nil
	},
	"spoils an entry in place": anEntry(func(e *metav1.ManagedFieldsEntry) { e.FieldsType = "FieldsV2" }),
	"spoils the fields":        anEntry(func(e *metav1.ManagedFieldsEntry) { e.FieldsV1 = metav1.NewFieldsV1(`{"what":1}`) }),
	"renames in place":         anEntry(func(e *metav1.ManagedFieldsEntry) { e.Manager = "another" }),
}

// TestManagedFieldsAreCheckedAsUpstreamDoes checks that after any change by a plugin the managedFields and the
// warnings are those of upstream's check.
func TestManagedFieldsAreCheckedAsUpstreamDoes(t *testing.T) {
	t.Parallel()
	for name, change := range pluginChanges {
		for seed := range int64(60) {
			admitted := func(admit func(admission.Interface) func(context.Context, admission.Attributes) error) string {
				random := rand.New(rand.NewSource(seed))
				var said warnings
				ctx := warning.WithWarningRecorder(t.Context(), &said)
				var obj runtime.Object = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", ManagedFields: randomManagedFields(random)}}
				if seed%2 == 1 {
					content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
					if err != nil {
						t.Fatal(err)
					}
					obj = &unstructured.Unstructured{Object: content}
				}
				a := admission.NewAttributesRecord(obj, nil, schema.GroupVersionKind{}, "", "", schema.GroupVersionResource{}, "", admission.Create, nil, false, nil)
				err := admit(plugin(func(o metav1.Object) error { return change(random, o) }))(ctx, a)
				object, accessErr := meta.Accessor(obj)
				if accessErr != nil {
					t.Fatal(accessErr)
				}
				text, marshalErr := json.Marshal(object.GetManagedFields())
				return fmt.Sprintf("%s %q %v %v", text, said, err, marshalErr)
			}
			want := admitted(func(chain admission.Interface) func(context.Context, admission.Attributes) error {
				checked := fieldmanager.NewManagedFieldsValidatingAdmissionController(chain).(admission.MutationInterface)
				return func(ctx context.Context, a admission.Attributes) error { return checked.Admit(ctx, a, nil) }
			})
			got := admitted(func(chain admission.Interface) func(context.Context, admission.Attributes) error {
				e := &Endpoint{mutating: chain.(admission.MutationInterface)}
				return e.admit
			})
			if got != want {
				t.Fatalf("a plugin %s: %s, want %s", name, got, want)
			}
		}
	}
}
