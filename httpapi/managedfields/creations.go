package managedfields

import (
	"bytes"
	"reflect"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

const (
	// maxRecords is how many records of a kind are remembered, maxRemembered how long what is
	// remembered of one may be, and maxBytes how much that may be of all records together: who
	// may create objects chooses what is remembered. A record is that of all pods of a
	// ReplicaSet, for example.
	maxRecords    = 256
	maxRemembered = 16 << 10
	maxBytes      = 1 << 20
)

// Creations makes the records of objects that are created. All fields of such an object are
// its creator's, so that the record depends on the object's shape alone: it is made once for
// all objects of a shape, by the field manager, and copied for the others.
//
// It may be used by any number of goroutines.
type Creations struct {
	manager   *managedfields.FieldManager
	types     managedfields.TypeConverter
	convertor runtime.ObjectConvertor
	creater   runtime.ObjectCreater
	kind      schema.GroupVersionKind

	mu     sync.RWMutex // guards what follows
	shape  *shape       // nil until the first object was recorded
	goType reflect.Type
	known  map[string]*metav1.ManagedFieldsEntry
	bytes  int // of the shapes and records in known
}

// NewCreations returns the Creations of one kind. manager is what [NewManager] made of the
// other parameters.
func NewCreations(manager *managedfields.FieldManager, types managedfields.TypeConverter, convertor runtime.ObjectConvertor, creater runtime.ObjectCreater, kind schema.GroupVersionKind) *Creations {
	return &Creations{manager: manager, types: types, convertor: convertor, creater: creater, kind: kind}
}

// Record sets the record of obj, which is about to be created, as the field manager would.
func (c *Creations) Record(obj runtime.Object, manager string) error {
	object, err := meta.Accessor(obj)
	if err != nil {
		return nil // upstream leaves it alone, too
	}
	shape, ok := c.shapeOf(obj, object, manager)
	if ok {
		c.mu.RLock()
		entry, known := c.known[string(shape)]
		c.mu.RUnlock()
		if known {
			setRecord(object, entry)
			return nil
		}
	}
	live, err := c.creater.New(c.kind)
	if err != nil {
		return err
	}
	c.manager.UpdateNoErrors(live, obj, manager)
	if ok {
		c.learn(shape, object.GetManagedFields())
		return nil
	}
	return c.survey()
}

// setRecord gives object a record of one entry, made now.
func setRecord(object metav1.Object, entry *metav1.ManagedFieldsEntry) {
	own := *entry
	own.Time = &metav1.Time{Time: time.Now().UTC()}
	own.FieldsV1 = &metav1.FieldsV1{Raw: bytes.Clone(entry.FieldsV1.Raw)}
	object.SetManagedFields([]metav1.ManagedFieldsEntry{own})
}

// shapeOf returns the manager and the shape of obj. It cannot be told of objects that bring a
// record of their own, nor of those whose last applied configuration kubectl keeps.
func (c *Creations) shapeOf(obj runtime.Object, object metav1.Object, manager string) ([]byte, bool) {
	c.mu.RLock()
	shape, goType := c.shape, c.goType
	c.mu.RUnlock()
	if shape == nil || object.GetManagedFields() != nil {
		return nil, false
	}
	if _, kubectl := object.GetAnnotations()[corev1.LastAppliedConfigAnnotation]; kubectl {
		return nil, false
	}
	versioned, err := c.convertor.ConvertToVersion(obj, c.kind.GroupVersion())
	if err != nil || reflect.TypeOf(versioned) != goType {
		return nil, false
	}
	dst, ok := shape.append(appendText(make([]byte, 0, 1024), manager), reflect.ValueOf(versioned), nil)
	return dst, ok && len(dst) <= maxRemembered
}

// survey finds the shape of objects of the kind, once.
func (c *Creations) survey() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shape != nil {
		return nil
	}
	obj, err := c.creater.New(c.kind)
	if err != nil {
		return err
	}
	obj.GetObjectKind().SetGroupVersionKind(c.kind)
	c.shape, c.goType = &shape{}, reflect.TypeOf(obj) // unknown
	if value, err := c.types.ObjectToTyped(obj, typed.AllowDuplicates); err == nil {
		c.shape = shapeOf(value.Schema(), reflect.TypeOf(obj), value.TypeRef())
	}
	return nil
}

// learn remembers the record of a shape.
func (c *Creations) learn(shape []byte, record []metav1.ManagedFieldsEntry) {
	if len(record) != 1 || record[0].FieldsV1 == nil || len(record[0].FieldsV1.Raw) > maxRemembered {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.known[string(shape)]; known { // by another creation
		return
	}
	size := len(shape) + len(record[0].FieldsV1.Raw)
	if c.known == nil || len(c.known) >= maxRecords || c.bytes+size > maxBytes {
		c.known, c.bytes = make(map[string]*metav1.ManagedFieldsEntry), 0
	}
	c.known[string(shape)] = record[0].DeepCopy()
	c.bytes += size
}

// Known returns how many records are remembered.
func (c *Creations) Known() int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return len(c.known)
}
