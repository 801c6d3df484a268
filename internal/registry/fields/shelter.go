package fields

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/endpoints/handlers/fieldmanager"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"

	"github.com/larder-io/larder/internal/invariants"
)

// Shelter spares one write the check of a record that nobody has touched.
//
// Upstream's handlers make the record of an object's fields, admit the object, and then decode
// the whole record to see whether admission has spoilt it. A plugin that changes the record
// replaces its entries. Where they are the very ones that were there before, the check can only
// succeed, because the record was encoded a moment ago. So the admission of a Shelter puts a
// record without entries in its place, of which nothing is checked, and its storages put the
// record back before they see the object.
//
// Where an object is created, the handler has the field manager compare it with an empty one.
// A Shelter with Creations has them make the record instead, before it admits the object: the
// handler is given a creater whose first object has no metadata, for which the field manager
// does nothing.
//
// Upstream's handler of one request is given the admission and the storage of one Shelter. It
// calls the storage with the object that it had admitted, with nothing in between that reads
// the record; a handler that gives the record up, as it does where an object is too large to be
// stored, does so by setting another, which is left as it is.
type Shelter struct {
	// Creations makes the record of an object that is created; nil leaves it to the handler.
	// Agent is the user agent of the request.
	Creations *Creations
	Agent     string

	object  metav1.Object // admitted last; nil if its record was left alone
	record  []metav1.ManagedFieldsEntry
	standIn [1]metav1.ManagedFieldsEntry // object has the first none of it instead
}

// Admission returns the admission to give to the handler; chain, which may be nil, is what
// decides.
func (s *Shelter) Admission(chain admission.Interface) admission.Interface {
	mutating, _ := chain.(admission.MutationInterface)
	validating, _ := chain.(admission.ValidationInterface)
	if s.Creations == nil && mutating == nil {
		return chain
	}
	return &sheltered{chain: chain, mutating: mutating, validating: validating, shelter: s}
}

type sheltered struct {
	chain      admission.Interface
	mutating   admission.MutationInterface   // chain, nil if it changes nothing
	validating admission.ValidationInterface // chain, nil if it refuses nothing
	shelter    *Shelter
}

// Handles implements admission.Interface.
func (a *sheltered) Handles(operation admission.Operation) bool {
	return a.records(operation) || a.decides(operation)
}

func (a *sheltered) records(operation admission.Operation) bool {
	return a.shelter.Creations != nil && operation == admission.Create
}

func (a *sheltered) decides(operation admission.Operation) bool {
	return a.chain != nil && a.chain.Handles(operation)
}

// Validate implements admission.ValidationInterface.
func (a *sheltered) Validate(ctx context.Context, attributes admission.Attributes, interfaces admission.ObjectInterfaces) error {
	if a.validating == nil || !a.decides(attributes.GetOperation()) {
		return nil
	}
	return a.validating.Validate(ctx, attributes, interfaces)
}

func (a *sheltered) mutate(ctx context.Context, attributes admission.Attributes, interfaces admission.ObjectInterfaces) error {
	if a.mutating == nil || !a.decides(attributes.GetOperation()) {
		return nil
	}
	return a.mutating.Admit(ctx, attributes, interfaces)
}

// Admit implements admission.MutationInterface.
func (a *sheltered) Admit(ctx context.Context, attributes admission.Attributes, interfaces admission.ObjectInterfaces) error {
	object, err := meta.Accessor(attributes.GetObject())
	if err != nil {
		return a.mutate(ctx, attributes, interfaces)
	}
	recorded := a.records(attributes.GetOperation())
	if creations := a.shelter.Creations; recorded {
		if err := creations.Record(attributes.GetObject(), managerOf(attributes.GetOperationOptions(), a.shelter.Agent)); err != nil {
			return fmt.Errorf("failed to create new object (Create for %v): %w", creations.kind, err)
		}
	}
	before := object.GetManagedFields()
	var space [4]metav1.ManagedFieldsEntry
	entries := append(space[:0], before...)
	if err := a.mutate(ctx, attributes, interfaces); err != nil {
		return err
	}
	switch after := object.GetManagedFields(); {
	case untouched(before, entries, after):
		if invariants.Enabled {
			if err := managedfields.ValidateManagedFields(after); err != nil {
				panic(fmt.Sprintf("fields: the record of %s was made wrong: %v", object.GetName(), err))
			}
		}
	case !recorded:
		return nil // the handler checks it
	default: // the handler does not know what the record was before
		if err := managedfields.ValidateManagedFields(after); err != nil {
			object.SetManagedFields(before)
			warning.AddWarning(ctx, "", fmt.Sprintf(fieldmanager.InvalidManagedFieldsAfterMutatingAdmissionWarningFormat, err.Error()))
		}
	}
	a.shelter.take(object)
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

// take puts a record without entries in the place of that of object.
func (s *Shelter) take(object metav1.Object) {
	record := object.GetManagedFields()
	if len(record) == 0 {
		return
	}
	s.object, s.record = object, record
	object.SetManagedFields(s.standIn[:0])
}

// giveBack puts the record back.
func (s *Shelter) giveBack() {
	if s.object == nil {
		return
	}
	if now := s.object.GetManagedFields(); len(now) == 0 && cap(now) == 1 && &now[:1][0] == &s.standIn[0] {
		s.object.SetManagedFields(s.record)
	}
	s.object, s.record = nil, nil
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
