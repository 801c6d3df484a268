package fields

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
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
// Where an object is updated or patched, a Shelter with Updates has those make the record, before
// it admits the object. The handler is given their idle field manager, and a stored object without
// its record, which is put back before the object is admitted; a patch must not name the record,
// then. Where a patch cannot be applied, that is tried again with the record: the patched object
// is part of upstream's errors.
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

	// Updates makes the record of an object that is updated; nil leaves it to the handler.
	// Replaces says that the whole object is sent, not a patch.
	Updates  *Updates
	Replaces bool

	sent    []metav1.ManagedFieldsEntry // the record that the client has sent
	manager string                      // who updates
	calls   int                         // of the storage
	live    runtime.Object              // stored, without its record; nil if it has that
	was     []metav1.ManagedFieldsEntry // the record of live

	object  metav1.Object // admitted last; nil if its record was left alone
	record  []metav1.ManagedFieldsEntry
	standIn [1]metav1.ManagedFieldsEntry // object has the first none of it instead
}

// Admission returns the admission to give to the handler; chain, which may be nil, is what
// decides.
func (s *Shelter) Admission(chain admission.Interface) admission.Interface {
	mutating, _ := chain.(admission.MutationInterface)
	validating, _ := chain.(admission.ValidationInterface)
	if s.Creations == nil && s.Updates == nil && mutating == nil {
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
	switch operation {
	case admission.Create:
		return a.shelter.Creations != nil || a.shelter.Updates != nil // which may create what is not there
	case admission.Update:
		return a.shelter.Updates != nil
	}
	return false
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
	recorded := a.shelter.recordUpdate(attributes.GetObject())
	if creations := a.shelter.Creations; creations != nil && a.records(attributes.GetOperation()) {
		recorded = true
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
	u.shelter.manager = managerOf(options, u.shelter.Agent)
	u.shelter.calls++
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
	s := u.shelter
	s.hide(old)
	defer s.show()
	obj, err := u.UpdatedObjectInfo.UpdatedObject(ctx, old)
	switch {
	case s.live == nil: // it was shown, for the record was made
	case err == nil: // nothing was asked to admit it
		s.recordUpdate(obj)
	case !s.Replaces && len(s.was) > 0:
		s.reveal()
		obj, err = u.UpdatedObjectInfo.UpdatedObject(ctx, old)
		if err == nil {
			s.recordUpdate(obj)
		}
	}
	s.giveBack()
	return obj, err
}

// hide takes the record of the stored object away until the new one's is made. Upstream's
// handler of an update calls the storage again if the object is too large to be stored with its
// record, and gives that up then.
func (s *Shelter) hide(old runtime.Object) {
	if s.Updates == nil || s.Replaces && s.calls > 1 {
		return
	}
	object, err := meta.Accessor(old)
	if err != nil {
		return
	}
	s.live, s.was = old, object.GetManagedFields()
	object.SetManagedFields(nil)
}

// reveal puts the record of the stored object back. The new one's is still to be made.
func (s *Shelter) reveal() {
	if object, err := meta.Accessor(s.live); err == nil {
		object.SetManagedFields(s.was)
	}
}

// show puts the record of the stored object back.
func (s *Shelter) show() {
	if s.live != nil {
		s.reveal()
	}
	s.live, s.was = nil, nil
}

// recordUpdate makes the record of obj, which takes the place of the stored object, and reports
// whether that was to be done.
func (s *Shelter) recordUpdate(obj runtime.Object) bool {
	if s.live == nil {
		return false
	}
	live := s.live
	s.show()
	if object, err := meta.Accessor(obj); err == nil {
		object.SetManagedFields(slices.Clone(s.sent))
	}
	s.Updates.Record(live, obj, s.manager)
	return true
}

// Serializer returns the serializer to give to the handler of an update, which tells the Shelter
// what record the client has sent.
func (s *Shelter) Serializer(inner runtime.NegotiatedSerializer) runtime.NegotiatedSerializer {
	return &serializer{inner, s}
}

type serializer struct {
	runtime.NegotiatedSerializer
	shelter *Shelter
}

// DecoderToVersion implements runtime.NegotiatedSerializer.
func (n *serializer) DecoderToVersion(inner runtime.Decoder, target runtime.GroupVersioner) runtime.Decoder {
	return &decoder{n.NegotiatedSerializer.DecoderToVersion(inner, target), n.shelter}
}

type decoder struct {
	runtime.Decoder
	shelter *Shelter
}

// Decode implements runtime.Decoder.
func (d *decoder) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	obj, kind, err := d.Decoder.Decode(data, defaults, into)
	if obj != nil {
		if object, err := meta.Accessor(obj); err == nil {
			d.shelter.sent = object.GetManagedFields()
		}
	}
	return obj, kind, err
}
