package writes

import (
	"net/http"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/audit"
	requestmetrics "k8s.io/apiserver/pkg/endpoints/handlers/metrics"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/dryrun"
)

// create creates the object in the body: apiserver pkg/endpoints/handlers/create.go.
func (w *Write) create() (result, error) {
	e, scope := w.endpoint, w.endpoint.Scope
	if e.named && w.Name == "" {
		return result{}, errNoName()
	}
	if err := w.negotiate(); err != nil {
		return result{}, err
	}
	input, err := w.input()
	if err != nil {
		return result{}, err
	}
	if err := w.readBody(requestmetrics.Create, nil); err != nil {
		return result{}, err
	}
	options := &metav1.CreateOptions{}
	if err := w.decodeOptions(options, "CreateOptions", func() field.ErrorList { return metavalidation.ValidateCreateOptions(options) }); err != nil {
		return result{}, err
	}
	obj, version, err := w.decode(input, directiveOf(options.FieldValidation), e.creater.New)
	if err != nil {
		return result{}, err
	}
	name, namespace := w.Name, w.Namespace
	if name == "" {
		_, name, _ = scope.Namer.ObjectName(obj) // the storage generates or rejects an empty name
	}
	if namespace == "" && scope.Resource == (schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}) {
		namespace = name // as in upstream, a Namespace is in the namespace of its name
	}
	w.inNamespace(namespace)
	audit.LogRequestObject(w.ctx, obj, version, scope.Resource, scope.Subresource, scope.Serializer)
	if err := e.prepareNew(obj, namespace); err != nil {
		return result{}, err
	}
	w.Event("About to store object in database")
	attributes := admission.NewAttributesRecord(obj, nil, scope.Kind, namespace, name, scope.Resource, scope.Subresource,
		admission.Create, options, dryrun.IsDryRun(options.DryRun), w.User)
	dedupOwners(w.ctx, obj, duplicateOwners)
	manager := managerOf(options.FieldManager, w.Peek("User-Agent"))
	created, err := w.finish(func(w *Write) (runtime.Object, error) { return w.storeNew(obj, name, manager, attributes, options) })
	if err != nil {
		w.failed(err)
		return result{}, err
	}
	w.succeeded()
	if status, ok := created.(*metav1.Status); ok && status.Code == 0 {
		status.Code = http.StatusCreated
	}
	return result{http.StatusCreated, created}, nil
}

// prepareNew clears the metadata that only the server sets and checks the namespace.
func (e *Endpoint) prepareNew(obj runtime.Object, namespace string) error {
	object, err := meta.Accessor(obj)
	if err != nil {
		return nil // an object without metadata
	}
	preserver, ok := e.Endpoint.Storage.(rest.SubresourceObjectMetaPreserver)
	if !ok || e.Scope.Subresource == "" || !preserver.PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate() {
		rest.WipeObjectMetaSystemFields(object)
	}
	return rest.EnsureObjectNamespaceMatchesRequestNamespace(rest.ExpectedNamespaceForResource(namespace, e.Scope.Resource), object)
}

// storeNew runs the steps from managedFields to store. If the object is too large for etcd, it retries
// without managedFields.
func (w *Write) storeNew(obj runtime.Object, name, manager string, attributes admission.Attributes, options *metav1.CreateOptions) (runtime.Object, error) {
	e := w.endpoint
	if err := w.manage(nil, obj, manager); err != nil {
		return nil, err
	}
	if err := e.admit(w.ctx, attributes); err != nil {
		return nil, err
	}
	dedupOwners(w.ctx, obj, duplicateOwnersAdmitted)
	validate := rest.AdmissionToValidateObjectFunc(e.chain, attributes, e.Scope)
	created, err := e.creater.Create(w.ctx, name, obj, validate, options)
	if isTooLarge(err) {
		removeManagedFields(obj)
		created, err = e.creater.Create(w.ctx, name, obj, validate, options)
	}
	return created, err
}
