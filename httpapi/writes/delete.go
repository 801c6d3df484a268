package writes

import (
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	internalscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	requestmetrics "k8s.io/apiserver/pkg/endpoints/handlers/metrics"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/apihelpers"
	"k8s.io/apiserver/pkg/util/dryrun"

	"github.com/larder-io/larder/internal/registry/storage"
)

// delete deletes an object (apiserver pkg/endpoints/handlers/delete.go).
func (w *Write) delete() (result, error) {
	e := w.endpoint
	if err := w.enterNamed(); err != nil {
		return result{}, err
	}
	options, err := w.deleteOptions(requestmetrics.Delete)
	if err != nil {
		return result{}, err
	}
	deleter := e.deleter
	if ignoresReadErrors(options) {
		if deleter, err = w.unsafeDeleter(options); err != nil {
			return result{}, err
		}
	}
	w.Event("About to delete object from database")
	validate := rest.AdmissionToValidateObjectDeleteFunc(e.chain, w.deleteAttributes(options), e.Scope)
	var deleted bool
	obj, err := w.finish(func(w *Write) (obj runtime.Object, err error) {
		obj, deleted, err = deleter.Delete(w.ctx, w.Name, validate, options)
		return obj, err
	})
	if err != nil {
		return result{}, err
	}
	w.Event("Object deleted from database")
	code := http.StatusOK
	//lint:ignore SA1019 it is deprecated, and clients still set it
	if orphan := options.OrphanDependents; !deleted && orphan != nil && !*orphan {
		code = http.StatusAccepted // the garbage collector deletes its dependents first
	}
	if obj == nil {
		obj = w.deletedStatus(code, w.Name)
	}
	return result{code, obj}, nil
}

// deleteCollection deletes the objects that the request selects.
func (w *Write) deleteCollection() (result, error) {
	e := w.endpoint
	w.inNamespace(w.Namespace)
	if err := w.negotiate(); err != nil {
		return result{}, err
	}
	selected, err := w.ValidListOptions(e.Scope.Convertor, e.Scope.Kind)
	if err != nil {
		return result{}, err
	}
	options, err := w.deleteOptions(requestmetrics.DeleteCollection)
	if err != nil {
		return result{}, err
	}
	if ignoresReadErrors(options) {
		const name, why = "ignoreStoreReadErrorWithClusterBreakingPotential", "is not allowed with DELETECOLLECTION, try again after removing the option"
		return result{}, invalidOptions("DeleteOptions", field.ErrorList{field.Invalid(field.NewPath(name), true, why)})
	}
	validate := rest.AdmissionToValidateObjectDeleteFunc(e.chain, w.deleteAttributes(options), e.Scope)
	obj, err := w.finish(func(w *Write) (runtime.Object, error) {
		return e.cleaner.DeleteCollection(w.ctx, validate, options, selected)
	})
	if err != nil {
		return result{}, err
	}
	if obj == nil {
		obj = w.deletedStatus(http.StatusOK, "")
	}
	return result{http.StatusOK, obj}, nil
}

// deletedStatus returns the Status of a delete whose storage returns no object.
func (w *Write) deletedStatus(code int, name string) *metav1.Status {
	return &metav1.Status{
		Status: metav1.StatusSuccess, Code: int32(code),
		Details: &metav1.StatusDetails{Name: name, Kind: w.endpoint.Scope.Kind.Kind},
	}
}

func (w *Write) deleteAttributes(options *metav1.DeleteOptions) admission.Attributes {
	scope := w.endpoint.Scope
	return admission.NewAttributesRecord(nil, nil, scope.Kind, w.Namespace, w.Name, scope.Resource, scope.Subresource,
		admission.Delete, options, dryrun.IsDryRun(options.DryRun), w.User)
}

// deleteOptions decodes the options of a delete from the body or, if that is empty, from the query.
func (w *Write) deleteOptions(verb requestmetrics.RequestBodyVerb) (*metav1.DeleteOptions, error) {
	if err := w.readBody(verb, nil); err != nil {
		return nil, err
	}
	options := &metav1.DeleteOptions{}
	if len(w.body) > 0 {
		if err := w.decodeDeleteOptions(options); err != nil {
			return nil, err
		}
	} else if len(w.Query) > 0 {
		if err := internalscheme.ParameterCodec.DecodeParameters(w.Query.Values(), w.endpoint.Scope.MetaGroupVersion, options); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	if !storage.UnsafeDeleteEnabled() {
		options.IgnoreStoreReadErrorWithClusterBreakingPotential = nil
	}
	if errs := metavalidation.ValidateDeleteOptions(options); len(errs) > 0 {
		return nil, invalidOptions("DeleteOptions", errs)
	}
	options.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("DeleteOptions"))
	return options, nil
}

// decodeDeleteOptions decodes the body. Its group is the resource's or meta.k8s.io.
func (w *Write) decodeDeleteOptions(options *metav1.DeleteOptions) error {
	scope, codecs := w.endpoint.Scope, apihelpers.GetMetaInternalVersionCodecs()
	input, err := negotiation.NegotiateInputSerializerForMediaType(string(w.Peek("Content-Type")), false, codecs)
	if err != nil {
		return err
	}
	kind := scope.MetaGroupVersion.WithKind("DeleteOptions")
	obj, found, err := codecs.DecoderToVersion(input.Serializer, kind.GroupVersion()).Decode(w.body, &kind, options)
	switch {
	case err != nil:
		return apierrors.NewBadRequest(err.Error())
	case obj != options:
		return apierrors.NewBadRequest("decoded object cannot be converted to DeleteOptions")
	}
	audit.LogRequestObject(w.ctx, obj, found.GroupVersion(), scope.Resource, scope.Subresource, codecs)
	if w.Verb == "delete" { // not of a collection
		w.Event("Decoded delete options")
		w.Event("Recorded the audit event")
	}
	return nil
}

func invalidOptions(kind string, errs field.ErrorList) error {
	return apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: kind}, "", errs)
}

// ignoresReadErrors reports whether the client asks to delete an object that may be unreadable.
func ignoresReadErrors(options *metav1.DeleteOptions) bool {
	ignore := options.IgnoreStoreReadErrorWithClusterBreakingPotential
	return ignore != nil && *ignore
}

// unsafeDeleter returns the deleter of unreadable objects, if the user is authorized to use it.
func (w *Write) unsafeDeleter(options *metav1.DeleteOptions) (rest.GracefulDeleter, error) {
	audit.AddAuditAnnotation(w.ctx, "apiserver.k8s.io/unsafe-delete-ignore-read-error", "")
	provider, ok := w.endpoint.Endpoint.Storage.(rest.CorruptObjectDeleterProvider)
	if !ok || provider.GetCorruptObjDeleter() == nil {
		return nil, apierrors.NewInternalError(errors.New("no unsafe deleter provided, can not honor ignoreStoreReadErrorWithClusterBreakingPotential"))
	}
	scope, attributes := w.endpoint.Scope, w.deleteAttributes(options)
	if scope.Authorizer == nil {
		return nil, apierrors.NewInternalError(errors.New("no authorizer provided, unable to authorize unsafe delete"))
	}
	if w.Subresource != "" {
		return nil, admission.NewForbidden(attributes, errors.New("ignoreStoreReadErrorWithClusterBreakingPotential delete option is not allowed on a subresource or non-resource request"))
	}
	const verb = "unsafe-delete-ignore-read-errors"
	decision, reason, err := scope.Authorizer.Authorize(w.ctx, authorizer.AttributesRecord{
		User: w.User, Verb: verb, Namespace: w.Namespace, Name: w.Name, ResourceRequest: true,
		APIGroup: scope.Resource.Group, APIVersion: scope.Resource.Version, Resource: scope.Resource.Resource,
	})
	switch {
	case err != nil:
		return nil, admission.NewForbidden(attributes, fmt.Errorf("error while checking permission for %q, %w", verb, err))
	case decision != authorizer.DecisionAllow:
		return nil, admission.NewForbidden(attributes, fmt.Errorf("not permitted to do %q, reason: %s", verb, reason))
	}
	return provider.GetCorruptObjDeleter(), nil
}
