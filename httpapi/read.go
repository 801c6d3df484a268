package httpapi

import (
	"bytes"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	internalscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"

	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/wire"
)

// read answers a GET, LIST or WATCH from encoded bytes and reports whether it did:
// what it leaves goes to upstream's handlers.
func (x *exchange) read(i *installed) bool {
	if i.view.Resource.Cache == nil || x.trail.recordsAnswers() && x.Verb != "watch" {
		return false
	}
	switch x.Verb {
	case "get":
		x.get(i)
	case "list":
		x.list(i)
	case "watch":
		if isUpgrade(string(x.peek("Connection")), string(x.peek("Upgrade"))) {
			return false // a websocket: upstream's handler speaks it
		}
		x.watch(i)
	default:
		return false
	}
	return true
}

// groupResource names the resource in errors, as upstream takes it from the request.
func (x *exchange) groupResource() schema.GroupResource {
	return schema.GroupResource{Group: x.Group, Resource: x.Resource}
}

// listOptions decodes, defaults and validates the options of a list or watch, in
// upstream's order (apiserver pkg/endpoints/handlers/get.go).
func (x *exchange) listOptions(i *installed) (*internalversion.ListOptions, error) {
	decoded, err := x.ListOptions()
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	o := *decoded
	internalversion.SetListOptionsDefaults(&o, true)
	if errs := validation.ValidateListOptions(&o, true); len(errs) > 0 {
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", errs)
	}
	if o.FieldSelector != nil && !o.FieldSelector.Empty() {
		o.FieldSelector, err = o.FieldSelector.Transform(func(label, value string) (string, string, error) {
			return i.scope.Convertor.ConvertFieldLabel(i.scope.Kind, label, value)
		})
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	if x.Name == "" {
		return &o, nil
	}
	if o.FieldSelector == nil || o.FieldSelector.Empty() {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", x.Name)
	} else if selected, ok := o.FieldSelector.RequiresExactMatch("metadata.name"); !ok || selected != x.Name {
		return nil, apierrors.NewBadRequest("fieldSelector metadata.name doesn't match requested name")
	}
	return &o, nil
}

// scopeOf narrows a list or watch by what its selectors pin down (apiserver
// pkg/registry/generic/registry/store.go).
func (x *exchange) scopeOf(i *installed, o *internalversion.ListOptions) registry.Scope {
	var scope registry.Scope
	namespaced := i.endpoint.Namespaced
	if namespaced {
		scope.Namespace = x.Namespace
	}
	// A continue token is relative to what the path names.
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

// tableOptions decodes the options of a table; nil if none was asked for.
func (x *exchange) tableOptions(f format) (*metav1.TableOptions, error) {
	if !f.isTable() {
		return nil, nil
	}
	o := &metav1.TableOptions{}
	if err := internalscheme.ParameterCodec.DecodeParameters(x.Query.Values(), metaVersion, o); err != nil {
		return nil, err
	}
	switch errs := metavalidation.ValidateTableOptions(o); len(errs) {
	case 0:
		return o, nil
	case 1:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("Unable to convert to Table as requested: %v", errs[0].Error()))
	default:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("Unable to convert to Table as requested: %v", errs))
	}
}

// notAcceptable is the error for a conversion that an answer cannot have.
func notAcceptable(message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotAcceptable,
		Reason: metav1.StatusReasonNotAcceptable, Message: message,
	}}
}

// sendTable answers with rows.
func (x *exchange) sendTable(f format, table *metav1.Table) {
	supported := internalscheme.Codecs.SupportedMediaTypes()
	info, ok := runtime.SerializerInfoForMediaType(supported, f.mediaType)
	if !ok {
		x.fail(negotiation.NewNotAcceptableError([]string{runtime.ContentTypeJSON, runtime.ContentTypeYAML}))
		return
	}
	serializer := info.Serializer
	if f.pretty && info.PrettySerializer != nil {
		serializer = info.PrettySerializer
	}
	body, err := runtime.Encode(internalscheme.Codecs.EncoderForVersion(serializer, f.convert.GroupVersion()), table)
	if err != nil {
		x.fail(err)
		return
	}
	x.sendCompressed(http.StatusOK, f.mediaType, body)
}

// negotiatedTable encodes tables in JSON for watches.
func negotiatedTable(version schema.GroupVersion) runtime.Encoder {
	info, _ := runtime.SerializerInfoForMediaType(internalscheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	return internalscheme.Codecs.EncoderForVersion(info.Serializer, version)
}

// sendJSON answers with a whole JSON body, in the way of writing it that f asks for.
func (x *exchange) sendJSON(f format, body []byte) {
	var err error
	switch {
	case f.mediaType == runtime.ContentTypeYAML:
		body, err = wire.YAML(body)
	case f.pretty:
		body, err = wire.Pretty(body)
	}
	if err != nil {
		x.fail(err)
		return
	}
	x.sendCompressed(http.StatusOK, f.mediaType, body)
}

// rewritten reports whether an answer in f is written from a whole JSON body.
func (f format) rewritten() bool {
	return f.mediaType == runtime.ContentTypeYAML || f.pretty && f.mediaType == runtime.ContentTypeJSON
}

// compressFrom is the size from which answers are compressed (apiserver
// pkg/endpoints/handlers/responsewriters/writers.go).
const compressFrom = 128 << 10

// compresses reports whether an answer of size bytes is to be compressed.
func (x *exchange) compresses(size int) bool {
	return size > compressFrom && acceptsGzip(x.peek("Accept-Encoding"))
}

// sendCompressed completes the response with body, compressed if that is wanted.
func (x *exchange) sendCompressed(status int, contentType string, body []byte) {
	if !x.compresses(len(body)) {
		x.send(status, contentType, body)
		return
	}
	out := bytes.NewBuffer(make([]byte, 0, len(body)/8))
	z := getGzip(out)
	_, err := z.Write(body)
	x.sendGzip(status, contentType, out, z, err)
}

// sendGzip completes the response with what z wrote to out.
func (x *exchange) sendGzip(status int, contentType string, out *bytes.Buffer, z *gzip.Writer, err error) {
	if closeErr := z.Close(); err == nil {
		err = closeErr
	}
	gzips.Put(z)
	if err != nil {
		x.fail(err) // of a buffer: cannot be
		return
	}
	x.set("Content-Encoding", "gzip")
	x.add("Vary", "Accept-Encoding")
	x.send(status, contentType, out.Bytes())
}

// gzips holds writers, which are large.
var gzips = sync.Pool{New: func() any {
	z, err := gzip.NewWriterLevel(nil, gzip.BestSpeed)
	if err != nil {
		panic(err) // the level is a constant
	}
	return z
}}

func getGzip(out *bytes.Buffer) *gzip.Writer {
	z := gzips.Get().(*gzip.Writer)
	z.Reset(out)
	return z
}

// observe reports a read to upstream's metrics.
func (x *exchange) observe(i *installed, scope string, size int) {
	i.observe(x.Verb, scope, x.fast.Response.StatusCode(), size, time.Since(x.received))
}

// warn tells clients what is to be said of the endpoint.
func (x *exchange) warn(i *installed) {
	for _, text := range i.warnings {
		x.add("Warning", warningHeader(text))
	}
}

// warningHeader is the value of a Warning header that says text.
func warningHeader(text string) string {
	header, err := utilnet.NewWarningHeader(299, "-", text)
	if err != nil {
		return ""
	}
	return header
}
