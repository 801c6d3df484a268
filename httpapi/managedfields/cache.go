package managedfields

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/larder-io/larder/internal/invariants"
)

const (
	// maxResults is how many results a Cache holds, maxKey how long a key may be, and maxBytes the
	// bytes of all keys and results: clients that write objects choose what is cached. All pods of a
	// ReplicaSet, for example, share a result.
	maxResults = 512
	maxKey     = 16 << 10
	maxBytes   = 2 << 20

	// maxUpdaters is one less than the entries of updates that make the field manager merge the
	// oldest (apimachinery pkg/util/managedfields/internal).
	maxUpdaters = 9
)

// Cache sets the managedFields of objects that one endpoint creates and updates. The result depends
// on the user agent, on the managedFields before, and on which fields are present or differ, but not on
// their values. So the field manager computes it once, and the Cache copies it for all similar writes.
//
// Its methods are safe for concurrent use.
type Cache struct {
	// Manager is upstream's field manager of the endpoint, over values that are not validated. It computes managedFields
	// that are not cached.
	Manager *managedfields.FieldManager

	types       *converter // of Manager
	convertor   runtime.ObjectConvertor
	creater     runtime.ObjectCreater
	kind        schema.GroupVersionKind
	subresource string

	mu      sync.RWMutex
	results map[string][]resultEntry
	bytes   int // of the keys and fields in results
}

// New returns the Cache of an endpoint. It has the parameters and the errors of managedfields.NewDefaultFieldManager.
func New(types managedfields.TypeConverter, convertor runtime.ObjectConvertor, defaulter runtime.ObjectDefaulter, creater runtime.ObjectCreater, kind schema.GroupVersionKind, hub schema.GroupVersion, subresource string, reset map[fieldpath.APIVersion]fieldpath.Filter) (*Cache, error) {
	own := &converter{inner: types}
	manager, err := managedfields.NewDefaultFieldManager(own, lazyConvertor{convertor}, defaulter, creater, kind, hub, subresource, reset)
	if err != nil {
		return nil, err
	}
	return &Cache{Manager: manager, types: own, convertor: convertor, creater: creater, kind: kind, subresource: subresource}, nil
}

// Uncached returns a Cache that has manager compute the managedFields of every write of a kind.
func Uncached(manager *managedfields.FieldManager, creater runtime.ObjectCreater, kind schema.GroupVersionKind) *Cache {
	return &Cache{Manager: manager, types: new(converter), creater: creater, kind: kind}
}

// resultEntry is an entry of the managedFields that a write results in.
type resultEntry struct {
	entry metav1.ManagedFieldsEntry // without its time; its fields have numbers in place of identifiers
	from  int                       // the entry before whose time it keeps, -1 for the time of the write
}

// Create sets the managedFields of obj, which is about to be created, as the field manager would.
func (c *Cache) Create(obj runtime.Object, manager string) error {
	object, err := meta.Accessor(obj)
	if err != nil {
		return nil // upstream does nothing either
	}
	live, err := c.creater.New(c.kind)
	if err != nil {
		return err
	}
	var ids identifiers
	c.set(live, obj, object, manager, c.creationKey(obj, object, manager, &ids), nil, &ids)
	return nil
}

// Update sets the managedFields of obj, which is about to replace live, as the field manager would.
func (c *Cache) Update(live, obj runtime.Object, manager string) {
	object, err := meta.Accessor(obj)
	if err != nil {
		return // upstream does nothing either
	}
	stored, err := meta.Accessor(live)
	if err != nil {
		return
	}
	t := c.types.known(c.kind)
	if t == nil {
		c.Manager.UpdateNoErrors(live, obj, manager)
		return
	}
	before, ok := c.entriesBefore(stored, object)
	if ok && len(before) == 0 {
		object.SetManagedFields(nil)
		return
	}
	var ids identifiers
	var key []byte
	if ok {
		sent := object.GetManagedFields()
		object.SetManagedFields(nil)
		key = c.updateKey(t, live, obj, before, manager, &ids)
		object.SetManagedFields(sent)
	}
	c.set(live, obj, object, manager, key, before, &ids)
}

// set sets the managedFields of obj, whose metadata is object, to the cached result of key, or has the field manager
// compute them. It caches that result, unless key is nil. before are the managedFields that the field manager starts
// with.
func (c *Cache) set(live, obj runtime.Object, object metav1.Object, manager string, key []byte, before []metav1.ManagedFieldsEntry, ids *identifiers) {
	if result := c.result(key); result != nil {
		entries := entriesOf(result, before, ids)
		c.check(live, obj, manager, entries)
		object.SetManagedFields(entries)
		return
	}
	c.Manager.UpdateNoErrors(live, obj, manager)
	if key != nil && managedfields.ValidateManagedFields(before) == nil {
		c.add(key, before, object.GetManagedFields(), ids)
	}
}

// creationKey returns a key of everything that the managedFields of a created object depend on. It is nil for
// an object that already has managedFields or kubectl's last applied configuration.
func (c *Cache) creationKey(obj runtime.Object, object metav1.Object, manager string, ids *identifiers) []byte {
	t := c.types.known(c.kind)
	if t == nil || object.GetManagedFields() != nil {
		return nil
	}
	if _, kubectl := object.GetAnnotations()[corev1.LastAppliedConfigAnnotation]; kubectl {
		return nil
	}
	versioned, ok := c.versioned(obj, t)
	if !ok {
		return nil
	}
	key := appendText(append(make([]byte, 0, 1024), 'c'), manager)
	key, ok = t.appendOutline(key, versioned, ids)
	return ids.complete(key, ok)
}

// check panics if the field manager computes another result, in builds that assert invariants.
//
// Invariant: a cached result is what the field manager computes.
func (c *Cache) check(live, obj runtime.Object, manager string, result []metav1.ManagedFieldsEntry) {
	if !invariants.Enabled {
		return
	}
	obj = obj.DeepCopyObject()
	c.Manager.UpdateNoErrors(live.DeepCopyObject(), obj, manager)
	object, err := meta.Accessor(obj)
	if err != nil {
		return
	}
	if want := withoutTimes(object.GetManagedFields()); !apiequality.Semantic.DeepEqual(want, withoutTimes(result)) {
		panic(fmt.Sprintf("managedfields: %s got %v, the field manager computes %v", object.GetName(), result, want))
	}
}

// withoutTimes returns entries without their times, in an order that does not depend on them.
func withoutTimes(entries []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
	entries = slices.Clone(entries)
	for i := range entries {
		entries[i].Time = nil
	}
	sortEntries(entries)
	return entries
}

// entriesBefore returns the managedFields that the field manager starts with. It fails for an object
// that the update creates, and if the client removes all entries. It also fails for subresources other
// than the status: their objects are of another kind than the stored one.
func (c *Cache) entriesBefore(stored, object metav1.Object) ([]metav1.ManagedFieldsEntry, bool) {
	if stored.GetUID() == "" || c.subresource != "" && c.subresource != "status" {
		return nil, false
	}
	before := object.GetManagedFields()
	if c.subresource != "" || before == nil {
		return stored.GetManagedFields(), true
	}
	return before, len(before) > 0
}

// updateKey returns a key of everything that the managedFields of an updated object depend on. It is nil for an update
// whose result is not cached.
func (c *Cache) updateKey(t *objectType, live, obj runtime.Object, before []metav1.ManagedFieldsEntry, manager string, ids *identifiers) []byte {
	key, updaters := appendText(append(make([]byte, 0, 2048), 'u'), manager), 0
	key = binary.AppendUvarint(key, uint64(len(before)))
	for i := range before {
		e := &before[i]
		if e.FieldsV1 == nil || e.APIVersion != c.kind.GroupVersion().String() {
			return nil
		}
		if e.Operation != metav1.ManagedFieldsOperationApply {
			updaters++
		}
		key = appendText(appendText(appendText(appendText(key, e.Manager), string(e.Operation)), e.FieldsType), e.Subresource)
		at := len(key)
		key = ids.appendNumbered(append(key, 0, 0, 0, 0), e.FieldsV1.GetRawBytes())
		binary.BigEndian.PutUint32(key[at:], uint32(len(key)-at))
	}
	if updaters > maxUpdaters || ids.refused || len(key) > maxKey {
		return nil
	}
	old, oldOK := c.versioned(live, t)
	now, nowOK := c.versioned(obj, t)
	if !oldOK || !nowOK || t.hasException(old) || t.hasException(now) {
		return nil
	}
	key, ok := t.appendChange(key, old, now, ids)
	return ids.complete(key, ok)
}

// versioned converts obj to the kind's version. It fails unless the result has type t.
func (c *Cache) versioned(obj runtime.Object, t *objectType) (reflect.Value, bool) {
	versioned, err := c.convertor.ConvertToVersion(obj, c.kind.GroupVersion())
	return reflect.ValueOf(versioned), err == nil && reflect.TypeOf(versioned) == t.goType
}

// result returns the cached result of key, nil if there is none.
func (c *Cache) result(key []byte) []resultEntry {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.results[string(key)]
}

// add caches the managedFields that a write has resulted in.
func (c *Cache) add(key []byte, before, after []metav1.ManagedFieldsEntry, ids *identifiers) {
	if len(after) == 0 {
		return // the field manager has failed
	}
	result, size := make([]resultEntry, len(after)), len(key)
	for i, e := range after {
		from := slices.IndexFunc(before, func(b metav1.ManagedFieldsEntry) bool {
			return b.Manager == e.Manager && b.Operation == e.Operation && b.APIVersion == e.APIVersion && b.Subresource == e.Subresource && b.Time == e.Time
		})
		if from < 0 && e.Time == nil {
			return
		}
		fields := ids.appendNumbered(nil, e.FieldsV1.GetRawBytes())
		e.Time, e.FieldsV1 = nil, rawFields(fields)
		result[i] = resultEntry{entry: e, from: from}
		size += len(fields)
	}
	if ids.refused || size > 2*maxKey {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.results[string(key)]; known { // added by a concurrent write
		return
	}
	if c.results == nil || len(c.results) >= maxResults || c.bytes+size > maxBytes {
		c.results, c.bytes = make(map[string][]resultEntry), 0
	}
	c.results[string(key)] = result
	c.bytes += size
}

// Len returns the number of cached results.
func (c *Cache) Len() int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return len(c.results)
}

// entriesOf returns the managedFields of a result for a write now, in the field manager's order. before
// are the managedFields that the write found.
func entriesOf(result []resultEntry, before []metav1.ManagedFieldsEntry, ids *identifiers) []metav1.ManagedFieldsEntry {
	entries := make([]metav1.ManagedFieldsEntry, len(result))
	for i := range result {
		entries[i] = result[i].entry
		entries[i].FieldsV1 = rawFields(ids.insert(result[i].entry.FieldsV1.GetRawBytes()))
		if from := result[i].from; from >= 0 {
			entries[i].Time = before[from].Time
		} else {
			entries[i].Time = &metav1.Time{Time: time.Now().UTC()}
		}
	}
	sortEntries(entries)
	return entries
}

// sortEntries sorts managedFields as the field manager does.
func sortEntries(entries []metav1.ManagedFieldsEntry) {
	slices.SortFunc(entries, func(a, b metav1.ManagedFieldsEntry) int {
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

// rawFields returns the fields that raw encodes. It keeps raw.
func rawFields(raw []byte) *metav1.FieldsV1 {
	fields := new(metav1.FieldsV1)
	fields.SetRawBytes(raw)
	return fields
}
