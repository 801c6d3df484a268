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
	decode := func(w *Write) (runtime.Object, schema.GroupVersion, error) {
		return w.decode(input, directiveOf(options.FieldValidation), e.updater.New)
	}
	obj, version, err := decode(w)
	if err != nil {
		return result{}, err
	}
	audit.LogRequestObject(w.ctx, obj, version, scope.Resource, scope.Subresource, scope.Serializer)
	if err := w.checkIdentity(obj); err != nil {
		return result{}, err
	}
	w.Event("About to store object in database")
	dedupOwners(w.ctx, obj, duplicateOwners)
	c := w.newChange(e.updater, options)
	if object, err := meta.Accessor(obj); err == nil && object.GetUID() != "" {
		c.preconditions = metav1.NewUIDPreconditions(string(object.GetUID()))
	}
	c.build = func(ctx context.Context, live runtime.Object, exists bool) (runtime.Object, error) {
		next := obj
		if obj = nil; next == nil { // after a conflict: the storage has changed the object that it received
			var err error
			if next, _, err = decode(c.write); err != nil {
				return nil, err
			}
			if err := c.write.checkIdentity(next); err != nil { // also sets a missing namespace
				return nil, err
			}
			dedupOwners(ctx, next, duplicateOwners)
		}
		return c.replace(live, next, exists)
	}
	stored, err := w.finish(c.store(false))
	if err != nil {
		w.failed(err)
		return result{}, err
	}
	w.succeeded()
	return c.result(stored), nil
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

// change is the rest.UpdatedObjectInfo of an update or a patch.
type change struct {
	write   *Write // in store, the copy of Write.finish
	updater rest.Updater
	options *metav1.UpdateOptions
	create  *metav1.CreateOptions // options, for admission of a create
	manager string                // of the changed fields

	preconditions *metav1.Preconditions
	// build returns the new object with its managedFields. If exists is false, live is an empty object.
	build     func(ctx context.Context, live runtime.Object, exists bool) (runtime.Object, error)
	unmanaged bool // store the object without managedFields
	created   bool
}

var _ rest.UpdatedObjectInfo = (*change)(nil)

func (w *Write) newChange(updater rest.Updater, options *metav1.UpdateOptions) *change {
	create := &metav1.CreateOptions{DryRun: options.DryRun, FieldManager: options.FieldManager, FieldValidation: options.FieldValidation}
	create.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("CreateOptions"))
	return &change{write: w, updater: updater, options: options, create: create, manager: managerOf(options.FieldManager, w.Peek("User-Agent"))}
}

// Preconditions implements rest.UpdatedObjectInfo.
func (c *change) Preconditions() *metav1.Preconditions { return c.preconditions }

// UpdatedObject implements rest.UpdatedObjectInfo. The storage calls it again after a conflict.
func (c *change) UpdatedObject(ctx context.Context, live runtime.Object) (runtime.Object, error) {
	uid, err := uidOf(live)
	if err != nil {
		return nil, err
	}
	obj, err := c.build(ctx, live, uid != "")
	if err != nil {
		return nil, err
	}
	operation := admission.Update
	if uid == "" {
		operation, live = admission.Create, nil
	}
	if err := c.write.endpoint.admit(ctx, c.attributes(obj, live, operation)); err != nil {
		return nil, err
	}
	dedupOwners(ctx, obj, duplicateOwnersAdmitted)
	if c.unmanaged && c.write.Verb == "patch" { // an update keeps what admission sets, like upstream's
		removeManagedFields(obj)
	}
	return obj, nil
}

// replace returns obj, which replaces live in an update, with its managedFields.
func (c *change) replace(live, obj runtime.Object, exists bool) (runtime.Object, error) {
	if !exists {
		ignoreDeletion(obj)
	}
	if c.unmanaged {
		removeManagedFields(obj)
		return obj, nil
	}
	return obj, c.write.manage(live, obj, c.manager)
}

// result returns the result for the stored object.
func (c *change) result(stored runtime.Object) result {
	if c.created {
		return result{http.StatusCreated, stored}
	}
	return result{http.StatusOK, stored}
}

// store returns the function for [Write.finish]. It makes the storage update the object, or, with apply, create it. If
// the new object is too large for etcd, it retries once without managedFields. An apply does not retry: its
// managedFields are part of the request.
func (c *change) store(apply bool) func(*Write) (runtime.Object, error) {
	return func(w *Write) (runtime.Object, error) {
		c.write = w
		stored, err := c.storeOnce(apply)
		if isTooLarge(err) && !apply {
			c.unmanaged = true
			stored, err = c.storeOnce(apply)
		}
		return stored, err
	}
}

func (c *change) storeOnce(apply bool) (stored runtime.Object, err error) {
	w, e := c.write, c.write.endpoint
	stored, c.created, err = c.updater.Update(w.ctx, w.Name, c,
		c.authorizeCreate(rest.AdmissionToValidateObjectFunc(e.chain, c.attributes(nil, nil, admission.Create), e.Scope)),
		rest.AdmissionToValidateObjectUpdateFunc(e.chain, c.attributes(nil, nil, admission.Update), e.Scope),
		apply, c.options)
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

// ignoreDeletion removes the deletion timestamp and grace period from an object that is created, as a POST does.
// Otherwise clients could create pods that no quota counts. Malformed values remain, and are rejected later.
func ignoreDeletion(obj runtime.Object) {
	object, err := meta.Accessor(obj)
	if err != nil {
		return
	}
	if object.GetDeletionTimestamp() != nil {
		object.SetDeletionTimestamp(nil)
	}
	if object.GetDeletionGracePeriodSeconds() != nil {
		object.SetDeletionGracePeriodSeconds(nil)
	}
}

// uidOf returns the UID of obj. It is empty if obj is not stored: for a create on update, the storage passes an empty
// object.
func uidOf(obj runtime.Object) (types.UID, error) {
	if obj == nil {
		return "", nil
	}
	object, err := meta.Accessor(obj)
	if err != nil {
		return "", apierrors.NewInternalError(err)
	}
	return object.GetUID(), nil
}
