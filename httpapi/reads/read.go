package reads

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	internalscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	apistorage "k8s.io/apiserver/pkg/storage"
	storeerrors "k8s.io/apiserver/pkg/storage/errors"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/httpapi/apimetrics"
	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/faults/inject"
	"github.com/larder-io/larder/httpapi/negotiate"
	"github.com/larder-io/larder/httpapi/request"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/storage"
)

// Read is one GET or LIST that is being served. Its methods take the resource as an argument.
type Read struct {
	*exchange.Exchange
	Stitcher *Stitcher
	Faults   *inject.RequestFaults // nil injects none
}

// Negotiate finds the format for a request that r serves. Like upstream's router, it rejects media types
// that a route cannot produce before it adds warnings.
func (x *Read) Negotiate(r *Resource) (negotiate.Format, bool) {
	accept := x.Peek("Accept")
	f, known := negotiate.Common(accept)
	known = known && (f.MediaType == runtime.ContentTypeJSON || len(r.Scope.StandardSerializers) == 0)
	header := ""
	if !known {
		header = string(accept)
		if media := produced(r, x.Verb); !r.bare && !negotiate.Accepts(header, media) {
			x.NoRoute(http.StatusNotAcceptable, negotiate.NotAcceptableText(media))
			return negotiate.Format{}, false
		}
	}
	for _, text := range r.warnings {
		header, _ := utilnet.NewWarningHeader(299, "-", text) // "" if text is not valid in a header
		x.Add("Warning", header)
	}
	if !known {
		var ok bool
		if f, ok = negotiate.Accepted(header, r.Scope.Serializer.SupportedMediaTypes(), r.Scope); !ok {
			media, _ := negotiation.MediaTypesForSerializer(r.Scope.Serializer)
			x.Fail(negotiation.NewNotAcceptableError(media))
			return negotiate.Format{}, false
		}
	}
	f.Pretty = f.Pretty || x.Pretty()
	return f, true
}

// ObserveRefused counts a read whose media type is rejected, unless upstream's router rejects it without counting.
func (x *Read) ObserveRefused(r *Resource) {
	if r.bare {
		x.Observe(r, len(x.Bytes))
	}
}

// produced lists the media types that upstream's route for verb names.
func produced(r *Resource, verb string) []string {
	media, streams := negotiation.MediaTypesForSerializer(r.Scope.Serializer)
	if verb == "get" {
		return media
	}
	return append(media, streams...)
}

// groupResource names the resource in errors, as upstream takes it from the request.
func (x *Read) groupResource() schema.GroupResource {
	return schema.GroupResource{Group: x.Group, Resource: x.Resource}
}

// ValidListOptions is Request.ValidListOptions, with the name in the path as a field selector.
func (x *Read) ValidListOptions(r *Resource) (*internalversion.ListOptions, error) {
	o, err := x.Request.ValidListOptions(r.Scope.Convertor, r.Scope.Kind)
	if err != nil || x.Name == "" {
		return o, err
	}
	if o.FieldSelector == nil || o.FieldSelector.Empty() {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", x.Name)
	} else if selected, ok := o.FieldSelector.RequiresExactMatch("metadata.name"); !ok || selected != x.Name {
		return nil, apierrors.NewBadRequest("fieldSelector metadata.name doesn't match requested name")
	}
	return o, nil
}

// ScopeOf narrows a list or watch to the name and namespace that its selectors require (apiserver
// pkg/registry/generic/registry/store.go).
func (x *Read) ScopeOf(r *Resource, o *internalversion.ListOptions) storage.Scope {
	var scope storage.Scope
	namespaced := r.Endpoint.Namespaced
	if namespaced {
		scope.Namespace = x.Namespace
	}
	// A continue token is relative to the path.
	if o.Continue != "" || o.FieldSelector == nil || o.FieldSelector.Empty() {
		return scope
	}
	if namespaced && scope.Namespace == "" {
		if ns, ok := o.FieldSelector.RequiresExactMatch("metadata.namespace"); ok && len(content.IsPathSegmentName(ns)) == 0 {
			scope.Namespace = ns
		}
	}
	if namespaced && scope.Namespace == "" {
		return scope
	}
	if name, ok := o.FieldSelector.RequiresExactMatch("metadata.name"); ok && name != "" && len(content.IsPathSegmentName(name)) == 0 {
		scope.Name = name
	}
	return scope
}

// encodeTable encodes a Table in the encoding from which a response in f is made.
func encodeTable(f negotiate.Format, table *metav1.Table) ([]byte, error) {
	plain := negotiate.Format{MediaType: f.MediaType}
	if f.Rewritten() {
		plain.MediaType = runtime.ContentTypeJSON
	}
	serializer := plain.Serializer(internalscheme.Codecs.SupportedMediaTypes())
	if serializer == nil {
		return nil, negotiation.NewNotAcceptableError([]string{runtime.ContentTypeJSON, runtime.ContentTypeYAML})
	}
	return runtime.Encode(internalscheme.Codecs.EncoderForVersion(serializer, f.Convert.GroupVersion()), table)
}

// TableEncoder encodes tables in JSON for watches.
func TableEncoder(version schema.GroupVersion) runtime.Encoder {
	info, _ := runtime.SerializerInfoForMediaType(internalscheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	return internalscheme.Codecs.EncoderForVersion(info.Serializer, version)
}

// Observe counts a read.
func (x *Read) Observe(r *Resource, size int) {
	x.Monitor(r).Observe(x.Counted(r, size))
	Annotate(x.Audit, r.Life)
}

// Counted returns the properties of a read that metrics count.
func (x *Read) Counted(r *Resource, size int) apimetrics.Response {
	return apimetrics.Response{
		Code: x.StatusCode(), Size: size, Took: time.Since(x.Received), Waited: x.InQueue,
		Unsized: x.VerbInPath || r.bare && x.Verb == "watch", Own: x.Carrier.Internal(), Life: r.Life,
	}
}

// Annotate adds to the audit event that a deprecated version was read (apiserver
// pkg/endpoints/metrics/metrics.go).
func Annotate(t *exchange.AuditRecord, life apimetrics.Lifecycle) {
	if !life.Deprecated {
		return
	}
	t.Annotate("k8s.io/deprecated", "true")
	if life.Removed != "" {
		t.Annotate("k8s.io/removed-release", life.Removed)
	}
}

// Monitor returns the monitor of a read, with the scope of the path. For custom resources, upstream
// counts a list whose field selector names one object as a GET.
func (x *Read) Monitor(r *Resource) *apimetrics.Monitor {
	verb, scope := x.Verb, "cluster"
	switch {
	case len(x.Parts) > 1:
		scope = "resource"
	case r.bare && x.Name != "":
		if scope = "resource"; verb == "list" {
			verb = "get"
		}
	case x.Namespace != "" && r.Endpoint.Namespaced:
		scope = "namespace"
	}
	return r.Monitors.Of(verb, scope)
}

// Resource serves reads of a resource or subresource in one API version. It is immutable.
type Resource struct {
	Endpoint *registry.Endpoint
	Scope    *handlers.RequestScope

	// View serves GET, LIST and WATCH from encoded bytes; if it is nil, upstream's handlers
	// serve them.
	View *registry.View

	// bare means that upstream has no router in front of the resource's handlers.
	bare bool

	// warnings are sent with every response, as for a deprecated version.
	warnings []string

	// Life says whether the version is deprecated.
	Life apimetrics.Lifecycle

	// Monitors count reads.
	Monitors *apimetrics.Monitors
}

// NewResource returns the Resource of e. monitors count its reads.
func NewResource(e *registry.Endpoint, scope *handlers.RequestScope, life apimetrics.Lifecycle, warnings []string, monitors *apimetrics.Monitors) Resource {
	return Resource{Endpoint: e, Scope: scope, View: e.View, Life: life, warnings: warnings, Monitors: monitors}
}

// Serve serves x, a GET or LIST of r, which has a view. It returns false if upstream's handlers must serve x.
func (x *Read) Serve(r *Resource) bool {
	switch x.Verb {
	case "get":
		x.get(r)
	case "list":
		x.list(r)
	default:
		return false
	}
	return true
}

// get serves a GET of one object: apiserver pkg/endpoints/handlers/get.go, GetResource, and
// pkg/registry/generic/registry/store.go, Get.
func (x *Read) get(r *Resource) {
	f, ok := x.Negotiate(r)
	if !ok {
		x.ObserveRefused(r)
		return
	}
	o, err := x.getObject(r)
	if err != nil {
		x.Fail(err)
		x.Observe(r, x.Length())
		return
	}
	if err := x.sendObject(r, f, o); err != nil {
		x.Fail(x.ReadError(r, err))
	}
	x.Observe(r, x.Length())
}

// getObject returns the object that the request names.
func (x *Read) getObject(r *Resource) (*cache.Object, error) {
	if value, ok := x.Query.Lookup("export"); ok && request.IsTrue(value) {
		return nil, apierrors.NewBadRequest("the export parameter, deprecated since v1.14, is no longer supported")
	}
	scope := storage.Scope{Name: x.Name}
	if r.Endpoint.Namespaced {
		if scope.Namespace = x.Namespace; scope.Namespace == "" {
			return nil, apierrors.NewBadRequest("Namespace parameter required.")
		}
	}
	if err := checkName(x.Name); err != nil {
		return nil, err
	}
	version := x.Query.Get("resourceVersion")
	if x.Traced() {
		x.Event("About to Get from storage")
		x.Enter("cacher.Get", attribute.String("audit-id", x.AuditID), attribute.String("key", r.View.Resource.KeyOf(scope)), attribute.String("resource-version", version))
		if version == "" { // a consistent read: kube-apiserver asks etcd for the current revision
			x.Event("About to Get from underlying storage")
		} else {
			x.Event("About to fetch object from cache")
		}
		defer x.Leave()
	}
	if past := x.FaultRevision(r, version); past > 0 {
		switch o, err := r.View.Resource.GetPast(scope, past); {
		case err == nil:
			return o, nil
		case apistorage.IsNotFound(err):
			return nil, storeerrors.InterpretGetError(err, x.groupResource(), x.Name)
		} // otherwise the log has just dropped the revision, or the object is corrupt
	}
	if version != "0" {
		began := time.Now()
		defer func() { x.Waited += time.Since(began) }() // for the cache; all other steps are fast
	}
	o, err := r.View.Resource.Get(x.Audit.Context(x.Base()), scope, version)
	if version != "" && (err == nil || apistorage.IsNotFound(err)) {
		x.Event("watchCache fresh enough")
	}
	if err != nil {
		return nil, storeerrors.InterpretGetError(x.ReadError(r, err), x.groupResource(), x.Name)
	}
	return o, nil
}

// checkName rejects names that would form the key of another object.
func checkName(name string) error {
	if name == "" {
		return apierrors.NewBadRequest("name must be provided")
	}
	if reasons := content.IsPathSegmentName(name); len(reasons) > 0 {
		return apierrors.NewBadRequest(fmt.Sprintf("Name parameter invalid: %q: %s", name, strings.Join(reasons, ";")))
	}
	return nil
}

// ReadError returns the error that a client gets for err, the error of a read of r. A read that fails once its
// deadline has passed has timed out.
func (x *Read) ReadError(r *Resource, err error) error {
	late := !x.Deadline.IsZero() && !time.Now().Before(x.Deadline)
	if err != nil && late || apistorage.IsRequestTimeout(err) {
		x.Monitor(r).Terminated(http.StatusGatewayTimeout)
		return exchange.ErrTimeout
	}
	return err
}

// VersionOf returns the version of the objects in a response.
func (x *Read) VersionOf(f negotiate.Format) schema.GroupVersion {
	if f.Convert != nil {
		return f.Convert.GroupVersion()
	}
	return schema.GroupVersion{Group: x.Group, Version: x.Version}
}

// sendObject sends o.
func (x *Read) sendObject(r *Resource, f negotiate.Format, o *cache.Object) error {
	x.BeginSerializing(f.MediaType, x.VersionOf(f))
	ctx := x.Base()
	if f.IsTable() {
		options, err := f.TableOptions(x.Query)
		if err != nil {
			return err
		}
		table, err := r.View.TableOf(ctx, o, 0, options, f.Convert.GroupVersion())
		if err != nil {
			return err
		}
		body, err := encodeTable(f, table)
		if err == nil {
			x.SendWhole(http.StatusOK, f.MediaType, f.Pretty, body)
		}
		return err
	}
	if f.Convert != nil && f.Convert.Kind == "PartialObjectMetadataList" {
		if r.bare {
			return errNoList
		}
		return negotiate.NotAcceptable(fmt.Sprintf("you requested PartialObjectMetadataList, but the requested object is not a list (%T)", r.Endpoint.Storage.New()))
	}
	encoder := r.View.Encoder(f.Encoding(), f.Projection())
	item, err := encoder.Item(ctx, o)
	if err != nil {
		return err
	}
	x.SendObject(http.StatusOK, f.MediaType, f.Pretty, encoder, item)
	return nil
}

// errNoList is upstream's error for a client that requests one object without a Go type as a list (apimachinery
// pkg/apis/meta/v1/unstructured/unstructured.go).
var errNoList = errors.New("content is not a list")
