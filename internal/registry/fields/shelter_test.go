package fields

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/endpoints/handlers/fieldmanager"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/kubernetes/pkg/apis/core"
)

// plugin is a chain of one plugin.
type plugin func(metav1.Object) error

func (plugin) Handles(admission.Operation) bool { return true }

func (p plugin) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	object, err := meta.Accessor(a.GetObject())
	if err != nil {
		return nil
	}
	return p(object)
}

func (plugin) Validate(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	return nil
}

// store is a storage that notes the record of what it is given.
type store struct {
	rest.Storage
	rest.Getter
	got []metav1.ManagedFieldsEntry
}

func (s *store) New() runtime.Object { return &corev1.Pod{} }

func (s *store) take(obj runtime.Object) {
	object, err := meta.Accessor(obj)
	if err != nil {
		return
	}
	s.got = object.GetManagedFields()
}

func (s *store) Create(_ context.Context, _ string, obj runtime.Object, _ rest.ValidateObjectFunc, _ *metav1.CreateOptions) (runtime.Object, error) {
	s.take(obj)
	return obj, nil
}

func (s *store) Update(ctx context.Context, _ string, info rest.UpdatedObjectInfo, _ rest.ValidateObjectFunc, _ rest.ValidateObjectUpdateFunc, _ bool, _ *metav1.UpdateOptions) (runtime.Object, bool, error) {
	obj, err := info.UpdatedObject(ctx, &corev1.Pod{})
	if err == nil {
		s.take(obj)
	}
	return obj, false, err
}

// plain is store as a rest.Creater.
type plain struct{ *store }

func (p plain) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	return p.store.Create(ctx, "", obj, validate, options)
}

// warnings is where upstream says that admission has spoilt a record.
type warnings []string

func (w *warnings) AddWarning(_, text string) { *w = append(*w, text) }

// randomRecord is a record as a field manager makes it.
func randomRecord(random *rand.Rand) []metav1.ManagedFieldsEntry {
	entries := make([]metav1.ManagedFieldsEntry, random.Intn(6)) // more than a Shelter has room for without a copy
	for i := range entries {
		at := metav1.NewTime(time.Unix(random.Int63n(1<<30), 0))
		entries[i] = metav1.ManagedFieldsEntry{
			Manager: fmt.Sprint("manager-", i), APIVersion: "v1", Time: &at, FieldsType: "FieldsV1",
			Operation: []metav1.ManagedFieldsOperationType{"Apply", "Update"}[random.Intn(2)],
			FieldsV1:  &metav1.FieldsV1{Raw: fmt.Appendf(nil, `{"f:metadata":{"f:labels":{"f:%d":{}}}}`, random.Intn(9))},
		}
	}
	return entries
}

// deeds are what plugins do to a record: nothing, what is right and what is wrong.
var deeds = map[string]func(*rand.Rand, metav1.Object) error{
	"nothing": func(*rand.Rand, metav1.Object) error { return nil },
	"label": func(_ *rand.Rand, o metav1.Object) error {
		o.SetLabels(map[string]string{"a": "b"})
		return nil
	},
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
		if record := o.GetManagedFields(); len(record) > 0 {
			o.SetManagedFields(record[:len(record)-1])
		}
		return nil
	},
	"spoils an entry in place": func(random *rand.Rand, o metav1.Object) error {
		if record := o.GetManagedFields(); len(record) > 0 {
			record[random.Intn(len(record))].FieldsType = "FieldsV2"
		}
		return nil
	},
	"spoils the fields": func(random *rand.Rand, o metav1.Object) error {
		if record := o.GetManagedFields(); len(record) > 0 {
			record[random.Intn(len(record))].FieldsV1 = &metav1.FieldsV1{Raw: []byte(`{"what":1}`)}
		}
		return nil
	},
	"renames in place": func(random *rand.Rand, o metav1.Object) error {
		if record := o.GetManagedFields(); len(record) > 0 {
			record[random.Intn(len(record))].Manager = "another"
		}
		return nil
	},
}

// TestSheltersAreNotSeen: with a Shelter, the storage gets the record that it gets without, and
// clients the same warnings, whatever plugins do to the record, for each kind of write.
func TestSheltersAreNotSeen(t *testing.T) {
	for name, deed := range deeds {
		for seed := range int64(30) {
			for _, verb := range []string{"create", "named create", "update", "patch", "given up"} {
				plainly, said := write(t, seed, verb, deed, nil)
				sheltered, saidToo := write(t, seed, verb, deed, new(Shelter))
				if !equality.Semantic.DeepEqual(plainly, sheltered) || fmt.Sprint(said) != fmt.Sprint(saidToo) {
					t.Fatalf("%s, %s: the storage got %v and %v without a Shelter, %v and %v with one", verb, name, plainly, said, sheltered, saidToo)
				}
			}
		}
	}
}

// write does what upstream's handlers do between the field manager and the storage. Its
// results are what the storage got, and what is said to the client.
func write(t *testing.T, seed int64, verb string, deed func(*rand.Rand, metav1.Object) error, shelter *Shelter) ([]metav1.ManagedFieldsEntry, []string) {
	t.Helper()
	random := rand.New(rand.NewSource(seed))
	var said warnings
	ctx := warning.WithWarningRecorder(context.Background(), &said)
	object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", ManagedFields: randomRecord(random)}}
	var chain admission.Interface = plugin(func(o metav1.Object) error { return deed(random, o) })
	s := &store{}
	var create rest.Creater = plain{s}
	var named rest.NamedCreater = s
	var update rest.Updater = s
	if shelter != nil {
		chain, create, named, update = shelter.Admission(chain), shelter.Creater(create), shelter.NamedCreater(named), shelter.Updater(update)
		if verb == "patch" {
			update = shelter.Patcher(s)
		}
	}
	admit := func(_ context.Context, obj, _ runtime.Object) (runtime.Object, error) {
		a := admission.NewAttributesRecord(obj, nil, schema.GroupVersionKind{}, "", "", schema.GroupVersionResource{}, "", admission.Create, nil, false, nil)
		checked := fieldmanager.NewManagedFieldsValidatingAdmissionController(admission.WithAudit(chain))
		return obj, checked.(admission.MutationInterface).Admit(ctx, a, nil)
	}
	clear := func(_ context.Context, obj, _ runtime.Object) (runtime.Object, error) {
		obj.(*corev1.Pod).ManagedFields = nil
		return obj, nil
	}
	var err error
	switch verb {
	case "create", "named create":
		if _, err = admit(ctx, object, nil); err != nil {
			break
		}
		if verb == "create" {
			_, err = create.Create(ctx, object, nil, nil)
		} else {
			_, err = named.Create(ctx, "p", object, nil, nil)
		}
	case "given up":
		_, _, err = update.Update(ctx, "p", rest.DefaultUpdatedObjectInfo(object, admit, clear), nil, nil, false, nil)
	default:
		_, _, err = update.Update(ctx, "p", rest.DefaultUpdatedObjectInfo(object, admit), nil, nil, false, nil)
	}
	if err != nil {
		said = append(said, err.Error())
	}
	return s.got, said
}

// TestSheltersOfCreationsAreNotSeen is TestSheltersAreNotSeen where the Shelter makes the record,
// too: once anew and once as it is remembered.
func TestSheltersOfCreationsAreNotSeen(t *testing.T) {
	kind := corev1.SchemeGroupVersion.WithKind("Pod")
	managers := newManagers(t, NewManager)
	creations := newCreations(managers, kind)
	for name, deed := range deeds {
		for seed := range int64(6) {
			created := func(shelter *Shelter) ([]metav1.ManagedFieldsEntry, string) {
				var said warnings
				ctx := warning.WithWarningRecorder(context.Background(), &said)
				random := rand.New(rand.NewSource(seed))
				s := &store{}
				var storage rest.Creater = plain{s}
				object := &core.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{name: "b"}}}
				var chain admission.Interface = plugin(func(o metav1.Object) error { return deed(random, o) })
				if shelter != nil {
					chain, storage = shelter.Admission(chain), shelter.Creater(storage)
				} else {
					managers.of(kind).UpdateNoErrors(&corev1.Pod{}, object, "agent")
				}
				a := admission.NewAttributesRecord(object, nil, kind, "", "", schema.GroupVersionResource{}, "", admission.Create, nil, false, nil)
				checked := fieldmanager.NewManagedFieldsValidatingAdmissionController(admission.WithAudit(chain))
				if err := checked.(admission.MutationInterface).Admit(ctx, a, nil); err != nil {
					return nil, err.Error()
				}
				if _, err := storage.Create(ctx, object, nil, nil); err != nil {
					t.Fatal(err)
				}
				blankTimes(t, object)
				return object.ManagedFields, fmt.Sprint(len(said)) // they name the time
			}
			want, wantSaid := created(nil)
			for range 2 {
				got, said := created(&Shelter{Creations: creations, Agent: "agent/1"})
				if !equality.Semantic.DeepEqual(got, want) || said != wantSaid {
					t.Fatalf("%s: recorded %v, said %s; want %v, %s", name, got, said, want, wantSaid)
				}
			}
		}
	}
}

// TestCreationsAreRecordedWithoutPlugins: who creates is recorded whether anything is asked to
// admit the object or not.
func TestCreationsAreRecordedWithoutPlugins(t *testing.T) {
	kind := corev1.SchemeGroupVersion.WithKind("Pod")
	for name, chain := range map[string]admission.Interface{"none": nil, "handles nothing": admission.NewHandler(), "one": plugin(func(metav1.Object) error { return nil })} {
		shelter := &Shelter{Creations: newCreations(newManagers(t, NewManager), kind), Agent: "agent/1"}
		object := &core.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{"a": "b"}}}
		a := admission.NewAttributesRecord(object, nil, kind, "", "", schema.GroupVersionResource{}, "", admission.Create, nil, false, nil)
		admit := admission.WithAudit(shelter.Admission(chain))
		if !admit.Handles(admission.Create) {
			t.Errorf("%s: creations are not handled", name)
		}
		if err := admit.(admission.MutationInterface).Admit(context.Background(), a, nil); err != nil {
			t.Fatal(err)
		}
		if err := admit.(admission.ValidationInterface).Validate(context.Background(), a, nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		shelter.giveBack()
		if record := object.ManagedFields; len(record) != 1 || record[0].Manager != "agent" || !strings.Contains(string(record[0].FieldsV1.Raw), "f:a") {
			t.Errorf("%s: recorded %v", name, record)
		}
	}
}

// TestRecordsAreNotDecodedAgain: the check that a Shelter spares does not take place.
func TestRecordsAreNotDecodedAgain(t *testing.T) {
	for _, spoilt := range []bool{false, true} {
		shelter := new(Shelter)
		object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{
			{Manager: "a", Operation: "Apply", APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: &metav1.FieldsV1{Raw: []byte(`{}`)}},
			{Manager: "b", Operation: "Update", APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: &metav1.FieldsV1{Raw: []byte(`{}`)}},
		}}}
		before := object.ManagedFields
		chain := shelter.Admission(plugin(func(o metav1.Object) error {
			if spoilt {
				o.GetManagedFields()[1].Manager = "another"
			}
			return nil
		}))
		a := admission.NewAttributesRecord(object, nil, schema.GroupVersionKind{}, "", "", schema.GroupVersionResource{}, "", admission.Create, nil, false, nil)
		if err := chain.(admission.MutationInterface).Admit(context.Background(), a, nil); err != nil {
			t.Fatal(err)
		}
		if now := object.ManagedFields; (len(now) == 0) == spoilt {
			t.Errorf("changed %t: the record to check is %v", spoilt, now)
		}
		shelter.giveBack()
		if now := object.ManagedFields; len(now) != len(before) || &now[0] != &before[0] {
			t.Errorf("changed %t: given back is %v", spoilt, now)
		}
	}
}
