package managedfields

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/larder-io/larder/internal/invariants"
)

// maxUpdaters is one less than how many entries of updates a record may have before the field
// manager merges the oldest of them (apimachinery pkg/util/managedfields/internal).
const maxUpdaters = 9

// Updates makes the records of objects that are updated, at one endpoint. What becomes of a
// record depends on the record, on who writes and on which fields differ, but not on their
// values: it is made once for all updates of which these are the same, by the field manager, and
// copied for the others, whose record is neither decoded nor encoded.
//
// It may be used by any number of goroutines.
type Updates struct {
	manager     *managedfields.FieldManager
	types       managedfields.TypeConverter
	convertor   runtime.ObjectConvertor
	creater     runtime.ObjectCreater
	kind        schema.GroupVersionKind
	subresource string

	mu         sync.RWMutex // guards what follows
	shape      *shape       // nil until the first update was recorded
	exceptions *exceptions
	goType     reflect.Type
	known      map[string][]becoming
	bytes      int // of the keys and fields in known
}

// becoming is an entry of the record that an update makes.
type becoming struct {
	entry metav1.ManagedFieldsEntry // without its time; its fields have numbers in the place of tokens
	from  int                       // the entry before that it has the time of, -1 if it is of the update
}

// NewUpdates returns the Updates of one endpoint. manager is what [NewManager] made of the other
// parameters, for that subresource.
func NewUpdates(manager *managedfields.FieldManager, types managedfields.TypeConverter, convertor runtime.ObjectConvertor, creater runtime.ObjectCreater, kind schema.GroupVersionKind, subresource string) *Updates {
	return &Updates{manager: manager, types: types, convertor: convertor, creater: creater, kind: kind, subresource: subresource}
}

// Record sets the record of obj, which is about to take the place of live, as the field manager
// would.
func (u *Updates) Record(live, obj runtime.Object, manager string) {
	object, err := meta.Accessor(obj)
	if err != nil {
		return // upstream leaves it alone, too
	}
	stored, err := meta.Accessor(live)
	if err != nil {
		return
	}
	before, ok := u.recordBefore(stored, object)
	if ok && len(before) == 0 {
		object.SetManagedFields(nil)
		return
	}
	var t tokens
	var key []byte
	if ok {
		sent := object.GetManagedFields()
		object.SetManagedFields(nil)
		key, ok = u.keyOf(live, obj, before, manager, &t)
		object.SetManagedFields(sent)
	}
	if ok {
		u.mu.RLock()
		after, known := u.known[string(key)]
		u.mu.RUnlock()
		if known {
			u.check(live, obj, manager, recordAfter(after, before, &t))
			object.SetManagedFields(recordAfter(after, before, &t))
			return
		}
	}
	u.manager.UpdateNoErrors(live, obj, manager)
	if ok {
		u.learn(key, before, object.GetManagedFields(), &t)
		return
	}
	u.survey()
}

// check panics if the field manager makes another record, in builds that assert invariants.
//
// Invariant: what is copied is what the field manager makes.
func (u *Updates) check(live, obj runtime.Object, manager string, record []metav1.ManagedFieldsEntry) {
	if !invariants.Enabled {
		return
	}
	obj = obj.DeepCopyObject()
	u.manager.UpdateNoErrors(live.DeepCopyObject(), obj, manager)
	object, err := meta.Accessor(obj)
	if err != nil {
		return
	}
	if want := timeless(object.GetManagedFields()); !apiequality.Semantic.DeepEqual(want, timeless(record)) {
		panic(fmt.Sprintf("fields: the record of %s was made %v, the field manager makes %v", object.GetName(), record, want))
	}
}

// timeless returns a record without its times, in an order that they do not decide.
func timeless(record []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
	record = slices.Clone(record)
	for i := range record {
		record[i].Time = nil
	}
	sortRecord(record)
	return record
}

// recordBefore returns the record that the field manager starts with. It cannot be told of a
// created object, nor where the client takes the record away.
func (u *Updates) recordBefore(stored, object metav1.Object) ([]metav1.ManagedFieldsEntry, bool) {
	if stored.GetUID() == "" {
		return nil, false
	}
	before := object.GetManagedFields()
	if u.subresource != "" || before == nil {
		return stored.GetManagedFields(), true
	}
	return before, len(before) > 0
}

// keyOf returns what the record of obj depends on.
func (u *Updates) keyOf(live, obj runtime.Object, before []metav1.ManagedFieldsEntry, manager string, t *tokens) ([]byte, bool) {
	u.mu.RLock()
	shape, exceptions, goType := u.shape, u.exceptions, u.goType
	u.mu.RUnlock()
	if shape == nil {
		return nil, false
	}
	key, updaters := appendText(make([]byte, 0, 2048), manager), 0
	key = binary.AppendUvarint(key, uint64(len(before)))
	for i := range before {
		e := &before[i]
		if e.FieldsV1 == nil || e.APIVersion != u.kind.GroupVersion().String() {
			return nil, false
		}
		if e.Operation != metav1.ManagedFieldsOperationApply {
			updaters++
		}
		key = appendText(appendText(appendText(appendText(key, e.Manager), string(e.Operation)), e.FieldsType), e.Subresource)
		at := len(key)
		key = t.appendNumbered(append(key, 0, 0, 0, 0), e.FieldsV1.Raw)
		binary.BigEndian.PutUint32(key[at:], uint32(len(key)-at))
	}
	if updaters > maxUpdaters || t.refused || len(key) > maxRemembered {
		return nil, false
	}
	group := u.kind.GroupVersion()
	l, err := u.convertor.ConvertToVersion(live, group)
	if err != nil || reflect.TypeOf(l) != goType {
		return nil, false
	}
	r, err := u.convertor.ConvertToVersion(obj, group)
	if err != nil || reflect.TypeOf(r) != goType {
		return nil, false
	}
	if exceptions.in(reflect.ValueOf(l)) || exceptions.in(reflect.ValueOf(r)) {
		return nil, false
	}
	key, ok := shape.appendChange(key, reflect.ValueOf(l), reflect.ValueOf(r), t)
	key = t.appendOrder(key)
	return key, ok && !t.refused && len(key) <= maxRemembered
}

// survey finds the shape of objects of the kind, once.
func (u *Updates) survey() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.shape != nil {
		return
	}
	obj, err := u.creater.New(u.kind)
	if err != nil {
		return
	}
	obj.GetObjectKind().SetGroupVersionKind(u.kind)
	u.shape, u.exceptions, u.goType = &shape{}, &exceptions{}, reflect.TypeOf(obj) // unknown
	if value, err := u.types.ObjectToTyped(obj, typed.AllowDuplicates); err == nil {
		u.shape = shapeOf(value.Schema(), reflect.TypeOf(obj), value.TypeRef())
		u.exceptions = exceptionsOf(value.Schema(), reflect.TypeOf(obj), value.TypeRef())
	}
}

// learn remembers what a record has become.
func (u *Updates) learn(key []byte, before, after []metav1.ManagedFieldsEntry, t *tokens) {
	if len(after) == 0 || managedfields.ValidateManagedFields(before) != nil {
		return // something was wrong
	}
	numbered := len(t.texts)
	becomes, size := make([]becoming, len(after)), len(key)
	for i, e := range after {
		if e.FieldsV1 == nil {
			return
		}
		from := slices.IndexFunc(before, func(b metav1.ManagedFieldsEntry) bool { return sameEntry(&b, &e) && b.Time == e.Time })
		if from < 0 && e.Time == nil {
			return
		}
		fields := t.appendNumbered(nil, e.FieldsV1.Raw)
		e.Time, e.FieldsV1 = nil, &metav1.FieldsV1{Raw: fields}
		becomes[i] = becoming{entry: e, from: from}
		size += len(fields)
	}
	if t.refused || len(t.texts) > numbered || size > 2*maxRemembered {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if _, known := u.known[string(key)]; known { // by another update
		return
	}
	if u.known == nil || len(u.known) >= maxRecords || u.bytes+size > maxBytes {
		u.known, u.bytes = make(map[string][]becoming), 0
	}
	u.known[string(key)] = becomes
	u.bytes += size
}

// sameEntry says whether two entries are of the same manager.
func sameEntry(a, b *metav1.ManagedFieldsEntry) bool {
	return a.Manager == b.Manager && a.Operation == b.Operation && a.APIVersion == b.APIVersion && a.Subresource == b.Subresource
}

// recordAfter returns what the record before becomes now, in the order in which the field
// manager puts its entries.
func recordAfter(becomes []becoming, before []metav1.ManagedFieldsEntry, t *tokens) []metav1.ManagedFieldsEntry {
	after := make([]metav1.ManagedFieldsEntry, len(becomes))
	for i := range becomes {
		after[i] = becomes[i].entry
		after[i].FieldsV1 = &metav1.FieldsV1{Raw: t.insert(becomes[i].entry.FieldsV1.Raw)}
		if from := becomes[i].from; from >= 0 {
			after[i].Time = before[from].Time
		} else {
			after[i].Time = &metav1.Time{Time: time.Now().UTC()}
		}
	}
	sortRecord(after)
	return after
}

// sortRecord sorts a record as the field manager does.
func sortRecord(record []metav1.ManagedFieldsEntry) {
	slices.SortFunc(record, func(a, b metav1.ManagedFieldsEntry) int {
		return cmp.Or(cmp.Compare(a.Operation, b.Operation), cmp.Compare(seconds(a.Time), seconds(b.Time)),
			cmp.Compare(a.Manager, b.Manager), cmp.Compare(a.APIVersion, b.APIVersion), cmp.Compare(a.Subresource, b.Subresource))
	})
}

func seconds(t *metav1.Time) int64 {
	if t == nil {
		return 0
	}
	return t.Unix()
}
