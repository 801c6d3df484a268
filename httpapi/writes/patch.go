package writes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/audit"
	requestmetrics "k8s.io/apiserver/pkg/endpoints/handlers/metrics"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/larder-io/larder/httpapi/patches"
)

// patch applies the body to the stored object (apiserver pkg/endpoints/handlers/patch.go).
func (w *Write) patch() (result, error) {
	e := w.endpoint
	contentType, _, _ := strings.Cut(string(w.Peek("Content-Type")), ";")
	if !slices.Contains(e.consumes, contentType) {
		return result{}, negotiation.NewUnsupportedMediaTypeError(e.consumes)
	}
	kind := types.PatchType(contentType)
	if err := w.enterNamed(); err != nil {
		return result{}, err
	}
	if err := w.readBody(requestmetrics.Patch, patches.Check(kind)); err != nil {
		return result{}, err
	}
	options := &metav1.PatchOptions{}
	if err := w.decodeOptions(options, "PatchOptions", func() field.ErrorList { return metavalidation.ValidatePatchOptions(options, kind) }); err != nil {
		return result{}, err
	}
	if w.Audit.RecordsRequests() {
		if body := patches.ToJSON(kind, w.body); body != nil {
			audit.LogRequestPatch(w.ctx, body)
		}
	}
	w.Event("Recorded the audit event")
	update := &metav1.UpdateOptions{DryRun: options.DryRun, FieldManager: options.FieldManager, FieldValidation: options.FieldValidation}
	update.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("UpdateOptions"))
	change := w.newChange(e.patcher, update)
	p := &patched{
		change: change, force: options.Force != nil && *options.Force,
		patch: patches.Patch{Target: &e.patches, Kind: kind, Data: w.body, Directive: directiveOf(options.FieldValidation)},
	}
	stored, err := w.finish(change.store(p, p.applies(), func() bool {
		_, err := meta.Accessor(e.patcher.New())
		p.unmanaged = err == nil && !p.applies()
		return p.unmanaged
	}))
	if err != nil {
		return result{}, err
	}
	w.Event("Object stored in database")
	return change.result(stored), nil
}

// patched makes the new object of a patch. It implements rest.UpdatedObjectInfo.
type patched struct {
	*change
	patch     patches.Patch
	force     bool // an apply takes fields over from other managers
	unmanaged bool // store the object without managedFields
}

// applies reports whether the patch is an apply, which may create the object.
func (p *patched) applies() bool {
	return p.patch.Kind == types.ApplyYAMLPatchType || p.patch.Kind == types.ApplyCBORPatchType
}

func (p *patched) Preconditions() *metav1.Preconditions { return nil }

// UpdatedObject implements rest.UpdatedObjectInfo. The storage calls it again after a conflict.
func (p *patched) UpdatedObject(ctx context.Context, live runtime.Object) (runtime.Object, error) {
	w := p.write
	w.Event("About to apply patch")
	stored, err := hasUID(live)
	if err != nil {
		return nil, err
	}
	obj, err := p.apply(ctx, live, stored)
	if err != nil {
		return nil, err
	}
	if has, err := hasUID(obj); err != nil {
		return nil, err
	} else if has && !stored {
		object, err := meta.Accessor(obj)
		if err != nil {
			return nil, err
		}
		return nil, apierrors.NewConflict(w.endpoint.Scope.Resource.GroupResource(), w.Name,
			fmt.Errorf("uid mismatch: the provided object specified uid %s, and no existing object was found", object.GetUID()))
	}
	if err := w.checkIdentity(obj); err != nil {
		return nil, err
	}
	w.Event("About to check admission control")
	if err := p.admit(ctx, obj, live); err != nil {
		return nil, err
	}
	if p.unmanaged {
		if object, err := meta.Accessor(obj); err == nil {
			object.SetManagedFields(nil)
		}
	}
	return obj, nil
}

// apply returns the new object with its managedFields.
func (p *patched) apply(ctx context.Context, live runtime.Object, stored bool) (runtime.Object, error) {
	w, scope := p.write, p.write.endpoint.Scope
	switch {
	case p.applies() && stored:
		return p.applyConfiguration(ctx, live)
	case p.applies():
		empty, err := scope.Creater.New(scope.Kind)
		if err != nil {
			return nil, fmt.Errorf("failed to create new object: %w", err)
		}
		return p.applyConfiguration(ctx, empty)
	case !stored:
		return nil, apierrors.NewNotFound(scope.Resource.GroupResource(), w.Name)
	}
	obj, err := p.applyPatch(ctx, live)
	if err != nil {
		return nil, err
	}
	return w.endpoint.manage(live, obj, w.manager(p.options.FieldManager))
}

// applyPatch applies the patch to live. It hides the managedFields of live from a patch that does not
// name them: they often are the larger part of the object. If the patch fails, applyPatch applies it
// again to the whole object, which is part of upstream's error. Without managedFields in the result, the
// field manager starts from those of live.
func (p *patched) applyPatch(ctx context.Context, live runtime.Object) (runtime.Object, error) {
	if !p.patch.IgnoresManagedFields() {
		return p.patch.Apply(ctx, live)
	}
	managed, err := managedFieldsOf(live)
	if err != nil {
		return p.patch.Apply(ctx, live)
	}
	before := managed.get()
	managed.set(nil)
	obj, err := p.patch.Apply(ctx, live)
	managed.set(before)
	if err != nil {
		return p.patch.Apply(ctx, live)
	}
	return obj, err
}

// applyConfiguration merges the applied configuration into live by the field manager.
func (p *patched) applyConfiguration(ctx context.Context, live runtime.Object) (runtime.Object, error) {
	manager := p.write.endpoint.Scope.FieldManager
	if manager == nil {
		return nil, apierrors.NewInternalError(errors.New("the resource has no managedFields"))
	}
	content, unique, err := patches.Applied(p.patch.Kind, p.patch.Data)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding YAML: %v", err))
	}
	applied := &unstructured.Unstructured{Object: content}
	ignoreDeletion(applied, live)
	obj, err := manager.Apply(live, applied, p.options.FieldManager, p.force)
	if err != nil {
		return nil, err
	}
	if unique || !patches.IsStrict(p.patch.Directive) {
		return obj, nil
	}
	if err := patches.CheckApplied(p.patch.Data); err != nil {
		if p.patch.Directive == metav1.FieldValidationStrict {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("error strict decoding YAML: %v", err))
		}
		patches.Warn(ctx, []error{err})
	}
	return obj, nil
}

var (
	_ rest.UpdatedObjectInfo = (*patched)(nil)
	_ rest.UpdatedObjectInfo = (*replacement)(nil)
)
