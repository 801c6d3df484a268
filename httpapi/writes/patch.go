package writes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/audit"
	requestmetrics "k8s.io/apiserver/pkg/endpoints/handlers/metrics"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"

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
	p := &patched{
		change: w.newChange(e.patcher, update), force: options.Force != nil && *options.Force,
		patch: patches.Patch{Target: &e.patches, Kind: kind, Data: w.body, Directive: directiveOf(options.FieldValidation)},
	}
	p.build = p.buildChecked
	stored, err := w.finish(p.store(p.applies()))
	if err != nil {
		return result{}, err
	}
	w.Event("Object stored in database")
	return p.result(stored), nil
}

// patched is a change by a patch.
type patched struct {
	*change
	patch patches.Patch
	force bool // an apply takes fields over from other managers
}

// applies reports whether the patch is an apply, which may create the object.
func (p *patched) applies() bool {
	return p.patch.Kind == types.ApplyYAMLPatchType || p.patch.Kind == types.ApplyCBORPatchType
}

// buildChecked returns the new object with its managedFields, if it is the one that the path names.
func (p *patched) buildChecked(ctx context.Context, live runtime.Object, exists bool) (runtime.Object, error) {
	w := p.write
	w.Event("About to apply patch")
	obj, err := p.apply(ctx, live, exists)
	if err != nil {
		return nil, err
	}
	uid, err := uidOf(obj)
	if err != nil {
		return nil, err
	}
	if uid != "" && !exists {
		return nil, apierrors.NewConflict(w.endpoint.Scope.Resource.GroupResource(), w.Name,
			fmt.Errorf("uid mismatch: the provided object specified uid %s, and no existing object was found", uid))
	}
	if err := w.checkIdentity(obj); err != nil {
		return nil, err
	}
	w.Event("About to check admission control")
	return obj, nil
}

// apply applies the patch or the configuration to live, and computes managedFields.
func (p *patched) apply(ctx context.Context, live runtime.Object, exists bool) (runtime.Object, error) {
	w, scope := p.write, p.write.endpoint.Scope
	if p.applies() {
		if !exists {
			var err error
			if live, err = scope.Creater.New(scope.Kind); err != nil {
				return nil, fmt.Errorf("failed to create new object: %w", err)
			}
		}
		return p.applyConfiguration(ctx, live, exists)
	}
	if !exists {
		return nil, apierrors.NewNotFound(scope.Resource.GroupResource(), w.Name)
	}
	obj, err := p.applyPatch(ctx, live)
	if err != nil {
		return nil, err
	}
	return obj, w.manage(live, obj, p.manager)
}

// applyPatch applies the patch to live. It hides the managedFields of live, often the larger part of an object, from a
// patch that does not name them. If the patch fails, applyPatch applies it again to the whole object, which is part of
// upstream's error. If the result has no managedFields, the field manager starts from those of live.
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
	return obj, nil
}

// applyConfiguration merges the applied configuration into live, which may be empty, by the field manager.
func (p *patched) applyConfiguration(ctx context.Context, live runtime.Object, exists bool) (runtime.Object, error) {
	manager := p.write.endpoint.Scope.FieldManager
	if manager == nil {
		return nil, apierrors.NewInternalError(errors.New("the resource has no managedFields"))
	}
	content, unique, err := patches.Applied(p.patch.Kind, p.patch.Data)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding YAML: %v", err))
	}
	applied := &unstructured.Unstructured{Object: content}
	if !exists {
		ignoreDeletion(applied)
	}
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
