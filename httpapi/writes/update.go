package writes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	requestmetrics "k8s.io/apiserver/pkg/endpoints/handlers/metrics"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/dryrun"
)

// update replaces the stored object with the one in the body (apiserver
// pkg/endpoints/handlers/update.go).
func (w *Write) update() (result, error) {
	e, scope := w.endpoint, w.endpoint.Scope
	if err := w.enterNamed(); err != nil {
		return result{}, err
	}
	if err := w.readBody(requestmetrics.Update, nil); err != nil {
		return result{}, err
	}
	options := &metav1.UpdateOptions{}
	if err := w.decodeOptions(options, "UpdateOptions", func() field.ErrorList { return metavalidation.ValidateUpdateOptions(options) }); err != nil {
		return result{}, err
	}
	input, err := w.input()
	if err != nil {
		return result{}, err
	}
	decode := func() (runtime.Object, schema.GroupVersion, error) {
		return w.decode(input, directiveOf(options.FieldValidation), e.updater.New)
	}
	obj, version, err := decode()
	if err != nil {
		return result{}, err
	}
	audit.LogRequestObject(w.ctx, obj, version, scope.Resource, scope.Subresource, scope.Serializer)
	if err := w.checkIdentity(obj); err != nil {
		return result{}, err
	}
	w.Event("About to store object in database")
	dedupOwners(w.ctx, obj, duplicateOwners)
	change := w.newChange(e.updater, options)
	replacement := &replacement{change: change, decode: decode, decoded: obj}
	stored, err := w.finish(change.store(replacement, false, func() bool {
		replacement.unmanaged = true
		return true
	}))
	if err != nil {
		w.failed(err)
		return result{}, err
	}
	w.succeeded()
	return change.result(stored), nil
}

// checkIdentity returns an error unless obj has the name and namespace of the path.
func (w *Write) checkIdentity(obj runtime.Object) error {
	if object, err := meta.Accessor(obj); err == nil {
		if err := rest.EnsureObjectNamespaceMatchesRequestNamespace(rest.ExpectedNamespaceForResource(w.Namespace, w.endpoint.Scope.Resource), object); err != nil {
			return err
		}
	}
	_, name, err := w.endpoint.Scope.Namer.ObjectName(obj)
	switch {
	case err != nil:
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s based on URL) was undeterminable: %v", w.Name, err))
	case name != w.Name:
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", name, w.Name))
	}
	return nil
}

// replacement makes the new object of an update. It implements rest.UpdatedObjectInfo.
type replacement struct {
	*change
	decode    func() (runtime.Object, schema.GroupVersion, error)
	decoded   runtime.Object // nil after the first call of UpdatedObject
	uid       types.UID      // in the body
	unmanaged bool           // store the object without managedFields
}

// Preconditions implements rest.UpdatedObjectInfo: a UID in the body must be the stored object's.
func (r *replacement) Preconditions() *metav1.Preconditions {
	if r.decoded != nil {
		if object, err := meta.Accessor(r.decoded); err == nil {
			r.uid = object.GetUID()
		}
	}
	if r.uid == "" {
		return nil
	}
	uid := r.uid
	return &metav1.Preconditions{UID: &uid}
}

// UpdatedObject implements rest.UpdatedObjectInfo. The storage changes the object that it receives and
// calls again after a conflict, so later calls decode the body again.
func (r *replacement) UpdatedObject(ctx context.Context, live runtime.Object) (runtime.Object, error) {
	obj := r.decoded
	if r.decoded = nil; obj == nil {
		var err error
		if obj, _, err = r.decode(); err != nil {
			return nil, err
		}
		if err := r.write.checkIdentity(obj); err != nil { // also sets a missing namespace
			return nil, err
		}
		dedupOwners(ctx, obj, duplicateOwners)
	}
	ignoreDeletion(obj, live)
	if r.unmanaged {
		if object, err := meta.Accessor(obj); err == nil {
			object.SetManagedFields(nil)
		}
	} else {
		obj, _ = r.write.endpoint.manage(live, obj, r.write.manager(r.options.FieldManager)) // only a create can fail
	}
	return obj, r.admit(ctx, obj, live)
}

// change is an update or a patch on its way to the storage.
type change struct {
	write   *Write
	updater rest.Updater
	options *metav1.UpdateOptions
	create  *metav1.CreateOptions // options, for admission of a create

	created bool
}

func (w *Write) newChange(updater rest.Updater, options *metav1.UpdateOptions) *change {
	create := &metav1.CreateOptions{DryRun: options.DryRun, FieldManager: options.FieldManager, FieldValidation: options.FieldValidation}
	create.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("CreateOptions"))
	return &change{write: w, updater: updater, options: options, create: create}
}

// result returns the answer for the stored object.
func (c *change) result(stored runtime.Object) result {
	if c.created {
		return result{http.StatusCreated, stored}
	}
	return result{http.StatusOK, stored}
}

// store updates the object by info. If the new object is too large for etcd and slim reports that it
// can be made smaller, store retries once.
func (c *change) store(info rest.UpdatedObjectInfo, forceCreate bool, slim func() bool) (runtime.Object, error) {
	stored, err := c.storeOnce(info, forceCreate)
	if isTooLarge(err) && slim() {
		stored, err = c.storeOnce(info, forceCreate)
	}
	return stored, err
}

func (c *change) storeOnce(info rest.UpdatedObjectInfo, forceCreate bool) (stored runtime.Object, err error) {
	w, e := c.write, c.write.endpoint
	stored, c.created, err = c.updater.Update(w.ctx, w.Name, info,
		c.authorizeCreate(rest.AdmissionToValidateObjectFunc(e.chain, c.attributes(nil, nil, admission.Create), e.Scope)),
		rest.AdmissionToValidateObjectUpdateFunc(e.chain, c.attributes(nil, nil, admission.Update), e.Scope),
		forceCreate, c.options)
	return stored, err
}

// attributes returns the admission attributes of obj, which replaces live.
func (c *change) attributes(obj, live runtime.Object, operation admission.Operation) admission.Attributes {
	w, scope := c.write, c.write.endpoint.Scope
	options := runtime.Object(c.options)
	if operation == admission.Create {
		options = c.create
	}
	return admission.NewAttributesRecord(obj, live, scope.Kind, w.Namespace, w.Name, scope.Resource, scope.Subresource,
		operation, options, dryrun.IsDryRun(c.options.DryRun), w.User)
}

// admit runs mutating admission on obj, which replaces live, and removes duplicate owners.
func (c *change) admit(ctx context.Context, obj, live runtime.Object) error {
	stored, err := hasUID(live)
	if err != nil {
		return err
	}
	operation := admission.Update
	if !stored {
		operation, live = admission.Create, nil
	}
	if err := c.write.endpoint.admit(ctx, c.attributes(obj, live, operation)); err != nil {
		return err
	}
	dedupOwners(ctx, obj, duplicateOwnersAdmitted)
	return nil
}

// authorizeCreate returns a validation of created objects that first checks whether the user may create
// them: the request was authorized as an update or a patch.
func (c *change) authorizeCreate(validate rest.ValidateObjectFunc) rest.ValidateObjectFunc {
	allowed := sync.OnceValue(c.mayCreate)
	return func(ctx context.Context, obj runtime.Object) error {
		if err := allowed(); err != nil {
			return err
		}
		return validate(ctx, obj)
	}
}

// mayCreate returns an error unless the user may create the object.
func (c *change) mayCreate() error {
	w, scope := c.write, c.write.endpoint.Scope
	if scope.Authorizer == nil {
		return apierrors.NewInternalError(errors.New("no authorizer provided, unable to authorize a create on update"))
	}
	attributes := authorizer.AttributesRecord{
		User: w.User, ResourceRequest: true, Path: w.Path, Verb: "create",
		APIGroup: scope.Resource.Group, APIVersion: scope.Resource.Version, Resource: scope.Resource.Resource,
		Subresource: scope.Subresource, Namespace: w.Namespace, Name: w.Name,
	}
	decision, reason, err := scope.Authorizer.Authorize(w.ctx, attributes)
	switch {
	case decision == authorizer.DecisionAllow: // err may still report rules that could not be evaluated
		return nil
	case err != nil:
		return apierrors.NewInternalError(err)
	}
	return responsewriters.ForbiddenStatusError(attributes, reason)
}

// ignoreDeletion removes the deletion timestamp and grace period from an object that is created, as a POST does. If live
// is stored, obj keeps them. Otherwise clients could create pods that no quota counts. Malformed values remain, and are
// refused later.
func ignoreDeletion(obj, live runtime.Object) {
	stored, err := hasUID(live)
	object, objErr := meta.Accessor(obj)
	if err != nil || objErr != nil || stored {
		return
	}
	if object.GetDeletionTimestamp() != nil {
		object.SetDeletionTimestamp(nil)
	}
	if object.GetDeletionGracePeriodSeconds() != nil {
		object.SetDeletionGracePeriodSeconds(nil)
	}
}

// hasUID reports whether obj is stored. For a create on update, the storage passes an empty object.
func hasUID(obj runtime.Object) (bool, error) {
	if obj == nil {
		return false, nil
	}
	object, err := meta.Accessor(obj)
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	return object.GetUID() != "", nil
}
