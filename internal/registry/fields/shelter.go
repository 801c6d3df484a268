package fields

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/larder-io/larder/internal/invariants"
)

// Shelter spares one write the check of a record that nobody has touched.
//
// Upstream's handlers make the record of an object's fields, admit the object, and then decode
// the whole record to see whether admission has spoilt it. A plugin that changes the record
// replaces its entries. Where they are the very ones that were there before, the check can only
// succeed, because the record was encoded a moment ago. So the admission of a Shelter puts an
// entry without fields in their place, which is checked in no time, and its storages put the
// record back before they see the object.
//
// Upstream's handler of one request is given the admission and the storage of one Shelter. It
// calls the storage with the object that it had admitted, with nothing in between that reads
// the record; a handler that gives the record up, as it does where an object is too large to be
// stored, does so by setting another, which is left as it is.
type Shelter struct {
	object  metav1.Object // admitted last; nil if its record was left alone
	record  []metav1.ManagedFieldsEntry
	standIn []metav1.ManagedFieldsEntry // what object has instead
}

// Admission returns the admission to give to the handler; chain is what decides.
func (s *Shelter) Admission(chain admission.Interface) admission.Interface {
	mutating, _ := chain.(admission.MutationInterface)
	validating, _ := chain.(admission.ValidationInterface)
	if mutating == nil || validating == nil {
		return chain
	}
	return &sheltered{Interface: chain, ValidationInterface: validating, mutating: mutating, shelter: s}
}

type sheltered struct {
	admission.Interface
	admission.ValidationInterface
	mutating admission.MutationInterface
	shelter  *Shelter
}

// Handles implements admission.Interface.
func (a *sheltered) Handles(operation admission.Operation) bool {
	return a.Interface.Handles(operation)
}

// Admit implements admission.MutationInterface.
func (a *sheltered) Admit(ctx context.Context, attributes admission.Attributes, interfaces admission.ObjectInterfaces) error {
	object, err := meta.Accessor(attributes.GetObject())
	if err != nil {
		return a.mutating.Admit(ctx, attributes, interfaces)
	}
	before := object.GetManagedFields()
	var space [4]metav1.ManagedFieldsEntry
	entries := append(space[:0], before...)
	if err := a.mutating.Admit(ctx, attributes, interfaces); err != nil {
		return err
	}
	if after := object.GetManagedFields(); untouched(before, entries, after) {
		a.shelter.take(object, after)
	}
	return nil
}

// untouched says whether after is before, whose entries have not changed either.
func untouched(before, entries, after []metav1.ManagedFieldsEntry) bool {
	if len(after) == 0 || len(before) != len(after) || &before[0] != &after[0] {
		return false
	}
	for i := range entries {
		if entries[i] != after[i] {
			return false
		}
	}
	return true
}

func (s *Shelter) take(object metav1.Object, record []metav1.ManagedFieldsEntry) {
	if invariants.Enabled {
		if err := managedfields.ValidateManagedFields(record); err != nil {
			panic(fmt.Sprintf("fields: the record of %s was made wrong: %v", object.GetName(), err))
		}
	}
	first := record[0]
	first.FieldsV1 = nil
	s.object, s.record, s.standIn = object, record, []metav1.ManagedFieldsEntry{first}
	object.SetManagedFields(s.standIn)
}

// giveBack puts the record back.
func (s *Shelter) giveBack() {
	if s.object == nil {
		return
	}
	if now := s.object.GetManagedFields(); len(now) == 1 && &now[0] == &s.standIn[0] {
		s.object.SetManagedFields(s.record)
	}
	*s = Shelter{}
}

// Creater returns the storage to give to the handler.
func (s *Shelter) Creater(storage rest.Creater) rest.Creater { return &creater{storage, s} }

type creater struct {
	rest.Creater
	shelter *Shelter
}

// Create implements rest.Creater.
func (c *creater) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	c.shelter.giveBack()
	return c.Creater.Create(ctx, obj, validate, options)
}

// NamedCreater returns the storage to give to the handler.
func (s *Shelter) NamedCreater(storage rest.NamedCreater) rest.NamedCreater {
	return &namedCreater{storage, s}
}

type namedCreater struct {
	rest.NamedCreater
	shelter *Shelter
}

// Create implements rest.NamedCreater.
func (c *namedCreater) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	c.shelter.giveBack()
	return c.NamedCreater.Create(ctx, name, obj, validate, options)
}

// PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate implements
// rest.SubresourceObjectMetaPreserver; a storage that does not is one that preserves nothing.
func (c *namedCreater) PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate() bool {
	preserver, ok := c.NamedCreater.(rest.SubresourceObjectMetaPreserver)
	return ok && preserver.PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate()
}

// Updater returns the storage to give to the handler.
func (s *Shelter) Updater(storage rest.Updater) rest.Updater { return &updater{storage, s} }

type updater struct {
	rest.Updater
	shelter *Shelter
}

// Update implements rest.Updater.
func (u *updater) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, force bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return u.Updater.Update(ctx, name, &updated{info, u.shelter}, create, update, force, options)
}

// Patcher returns the storage to give to the handler.
func (s *Shelter) Patcher(storage rest.Patcher) rest.Patcher {
	return &patcher{storage, updater{storage, s}}
}

type patcher struct {
	rest.Patcher
	updater updater
}

// Update implements rest.Updater.
func (p *patcher) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, force bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return p.updater.Update(ctx, name, info, create, update, force, options)
}

// updated gives the record back as soon as the object is made.
type updated struct {
	rest.UpdatedObjectInfo
	shelter *Shelter
}

// UpdatedObject implements rest.UpdatedObjectInfo.
func (u *updated) UpdatedObject(ctx context.Context, old runtime.Object) (runtime.Object, error) {
	obj, err := u.UpdatedObjectInfo.UpdatedObject(ctx, old)
	u.shelter.giveBack()
	return obj, err
}
