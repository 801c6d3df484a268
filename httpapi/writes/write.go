package writes

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	internalscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/handlers/finisher"
	requestmetrics "k8s.io/apiserver/pkg/endpoints/handlers/metrics"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/negotiate"
	"github.com/larder-io/larder/httpapi/patches"
	"github.com/larder-io/larder/httpapi/socket"
	"github.com/larder-io/larder/internal/registry/storage"
)

// Write is the state of one write. It belongs to the goroutine that serves the request.
type Write struct {
	*exchange.Exchange
	endpoint *Endpoint

	ctx      context.Context // ends at the deadline, or when the client leaves
	warnings recorder
	body     []byte
	format   format
	stored   *storage.Written // the objects that the storage has returned; nil if they are not tracked
}

// result is the status code and the object of a successful response.
type result struct {
	code int
	obj  runtime.Object
}

// Serve serves x, a write of e. If x is traced, it calls attributes for the attributes of the span.
func (e *Endpoint) Serve(x *exchange.Exchange, attributes func() []attribute.KeyValue) {
	w := &Write{Exchange: x, endpoint: e}
	if !w.routed() {
		return
	}
	storage.ReserveStack()
	if x.Traced() {
		x.Enter(SpanName(x.Verb), attributes()...)
	}
	defer w.begin()()
	for _, text := range e.Warnings {
		warning.AddWarning(w.ctx, "", text)
	}
	done, err := w.serve()
	if err != nil {
		w.refuse(err)
	} else {
		w.warnings.close(&x.Response)
		w.respond(done)
	}
	w.observe()
}

// SpanName returns upstream's name for the span of a verb.
func SpanName(verb string) string {
	if verb == "deletecollection" {
		return "Delete"
	}
	return strings.ToUpper(verb[:1]) + verb[1:]
}

// routed rejects media types as upstream's router does. Upstream's metrics do not count such requests.
func (w *Write) routed() bool {
	if w.endpoint.Unrouted {
		return true
	}
	if w.Verb == "patch" && !negotiate.Consumes(string(w.Peek("Content-Type")), w.endpoint.consumes) {
		w.NoRoute(http.StatusUnsupportedMediaType, "415: Unsupported Media Type")
		return false
	}
	accept := w.Peek("Accept")
	if _, usual := negotiate.Common(accept); !usual && !negotiate.Accepts(string(accept), w.endpoint.produces) {
		w.NoRoute(http.StatusNotAcceptable, negotiate.NotAcceptableText(w.endpoint.produces))
		return false
	}
	return true
}

// maxTime limits the time of a write (apiserver pkg/endpoints/handlers/rest.go, requestTimeoutUpperBound).
const maxTime = 34 * time.Second

// begin sets ctx and returns a function that ends it.
func (w *Write) begin() func() {
	ctx, cancel := w.Base(), func() {}
	if w.Verb != "deletecollection" { // which may take as long as a list
		ctx, cancel = context.WithTimeout(ctx, maxTime)
	}
	ctx = exchange.Context(w.Audit.Context(ctx), w.RequestInfo(), w.User, w.Received)
	if w.Verb != "deletecollection" { // which may delete any number of objects
		ctx, w.stored = storage.Track(ctx)
	}
	w.ctx = warning.WithWarningRecorder(ctx, &w.warnings)
	return func() {
		cancel()
		if t, ok := apirequest.LatencyTrackersFrom(ctx); ok { // time spent waiting is not charged
			w.Waited += t.StorageTracker.GetLatency() + t.MutatingWebhookTracker.GetLatency() + t.ValidatingWebhookTracker.GetLatency()
		}
	}
}

// serve runs the steps of the request's verb, from negotiate to finish.
func (w *Write) serve() (result, error) {
	switch w.Verb {
	case "create":
		return w.create()
	case "update":
		return w.update()
	case "patch":
		return w.patch()
	case "delete":
		return w.delete()
	case "deletecollection":
		return w.deleteCollection()
	}
	return result{}, apierrors.NewMethodNotSupported(w.endpoint.Scope.Resource.GroupResource(), w.Verb)
}

// finish calls store and returns its result. It turns a Status of a failure into an error, and an error after the end
// of ctx into a timeout. A conversion webhook knows nothing of ctx: store then gets a copy of w, which may outlive w.
func (w *Write) finish(store func(*Write) (runtime.Object, error)) (runtime.Object, error) {
	if w.endpoint.Converts {
		own, seat := &Write{Exchange: w.Detached(), endpoint: w.endpoint, ctx: w.ctx, body: w.body}, w.TakeSeat()
		var ended atomic.Bool // store, or the wait for it
		defer func() {
			if ended.Swap(true) {
				w.Seat = seat
			}
		}()
		return finisher.FinishRequest(w.ctx, func() (runtime.Object, error) {
			defer func() {
				if ended.Swap(true) { // until now, the seat limited the writes that wait for webhooks
					seat.Release()
				}
			}()
			storage.ReserveStack()
			return store(own)
		})
	}
	obj, err := store(w)
	if err != nil {
		if ended := w.ctx.Err(); ended != nil {
			return nil, apierrors.NewTimeoutError(fmt.Sprintf("request did not complete within requested timeout - %s", ended), 0)
		}
		return nil, err
	}
	if status, ok := obj.(*metav1.Status); ok && status.Status != metav1.StatusSuccess {
		return nil, apierrors.FromObject(status)
	}
	return obj, nil
}

// refuse sends the response for err.
func (w *Write) refuse(err error) {
	if errors.Is(err, exchange.ErrTimeout) || w.ctx.Err() != nil && !time.Now().Before(w.Deadline) {
		metrics.RecordRequestTermination(w.metricsRequest(), w.RequestInfo(), metrics.APIServerComponent, http.StatusGatewayTimeout)
		w.Fail(exchange.ErrTimeout) // without warnings, because upstream's filter sends this response
		return
	}
	w.warnings.close(&w.Response)
	w.fail(err)
}

// fail sends the Status of err in the codecs of the resource.
func (w *Write) fail(err error) {
	w.FailIn(err, w.endpoint.Scope.Serializer, w.endpoint.Scope.Kind.GroupVersion())
}

// observe counts the write in the metrics.
func (w *Write) observe() {
	gvr, life := w.endpoint.Scope.Resource, w.endpoint.Life
	metrics.MonitorRequest(w.metricsRequest(), w.Method, gvr.Group, gvr.Version, gvr.Resource, w.endpoint.Scope.Subresource, w.scope(),
		metrics.APIServerComponent, life.Deprecated, life.Removed, w.StatusCode(), w.Length(), time.Since(w.Received))
}

// scope returns the scope label of the write in upstream's metrics.
func (w *Write) scope() string {
	switch {
	case len(w.Parts) > 1 || w.Verb == "create":
		return "resource"
	case w.Namespace != "" && w.endpoint.Endpoint.Namespaced:
		return "namespace"
	}
	return "cluster"
}

// metricsRequest returns a net/http request for upstream's metrics.
func (w *Write) metricsRequest() *http.Request {
	req := &http.Request{Method: w.Method, URL: &url.URL{Path: w.Path, RawQuery: w.RawQuery}}
	if w.Verb == "patch" {
		req.Header = http.Header{"Content-Type": {string(w.Peek("Content-Type"))}}
	}
	return req.WithContext(w.ctx)
}

// inNamespace adds the namespace of the object to ctx.
func (w *Write) inNamespace(namespace string) { w.ctx = apirequest.WithNamespace(w.ctx, namespace) }

// enterNamed begins a request for one existing object, which must name the object and a known format.
func (w *Write) enterNamed() error {
	if w.Name == "" {
		return errNoName()
	}
	w.inNamespace(w.Namespace)
	return w.negotiate()
}

// errNoName is the error for a path without an object name.
func errNoName() error { return apierrors.NewBadRequest("name must be provided") }

// failed adds an event for a failed write to the span.
func (w *Write) failed(err error) {
	w.Event("Write to database call failed", attribute.Int("len", len(w.body)), attribute.String("err", err.Error()))
}

// succeeded adds an event for a stored object to the span.
func (w *Write) succeeded() {
	w.Event("Write to database call succeeded", attribute.Int("len", len(w.body)))
}

// recorder collects the warnings of one response by upstream's recorder, whose type is not exported. It is safe for
// concurrent use.
type recorder struct {
	http.ResponseWriter // nil: upstream's recorder calls only Header

	mu       sync.Mutex      // guards what follows
	header   http.Header     // to which upstream's recorder adds
	upstream context.Context // has that recorder; nil before the first warning
}

func (r *recorder) Header() http.Header { return r.header }

func (r *recorder) AddWarning(agent, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.upstream == nil {
		r.header = make(http.Header)
		keep := func(_ http.ResponseWriter, req *http.Request) { r.upstream = req.Context() }
		filters.WithWarningRecorder(http.HandlerFunc(keep)).ServeHTTP(r, new(http.Request))
	}
	warning.AddWarning(r.upstream, agent, text)
}

// close adds the headers to the response. Later warnings are not sent.
func (r *recorder) close(to *exchange.Response) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, header := range r.header["Warning"] {
		to.Add("Warning", header)
	}
}

// readBody reads the body of the request and passes it to check, unless check is nil.
func (w *Write) readBody(verb requestmetrics.RequestBodyVerb, check func([]byte) error) error {
	began := time.Now()
	body, err := w.Carrier.ReadBody(w.Deadline)
	w.Waited += time.Since(began) // time spent waiting for the client is not charged
	if socket.IsTimeout(err) {
		return exchange.ErrTimeout
	}
	if err == nil && check != nil {
		err = check(body)
	}
	if err != nil {
		w.Event("limitedReadBody failed", attribute.Int("len", len(body)), attribute.String("err", err.Error()))
		return err
	}
	requestmetrics.RecordRequestBodySize(w.ctx, w.endpoint.Scope.Resource.GroupResource(), verb, len(body))
	w.Event("limitedReadBody succeeded", attribute.Int("len", len(body)))
	w.body = body
	return nil
}

// decodeOptions decodes the query into options, validates them and sets their kind.
func (w *Write) decodeOptions(options runtime.Object, kind string, validate func() field.ErrorList) error {
	if len(w.Query) > 0 {
		if err := internalscheme.ParameterCodec.DecodeParameters(w.Query.Values(), w.endpoint.Scope.MetaGroupVersion, options); err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
	}
	if errs := validate(); len(errs) > 0 {
		return invalidOptions(kind, errs)
	}
	options.GetObjectKind().SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind(kind))
	return nil
}

// input returns the serializer for the Content-Type of the request.
func (w *Write) input() (runtime.SerializerInfo, error) {
	return negotiation.NegotiateInputSerializerForMediaType(string(w.Peek("Content-Type")), false, w.endpoint.Scope.Serializer)
}

// decode decodes the body to the internal version. directive decides whether unknown and duplicate fields are ignored,
// warned of or rejected. version is the API version of the body.
func (w *Write) decode(info runtime.SerializerInfo, directive string, empty func() runtime.Object) (obj runtime.Object, version schema.GroupVersion, err error) {
	scope := w.endpoint.Scope
	serializer := info.Serializer
	if patches.IsStrict(directive) {
		if serializer = info.StrictSerializer; serializer == nil { // protobuf, of custom resources
			return nil, version, negotiation.NewUnsupportedMediaTypeError(strictTypes(scope.Serializer))
		}
	}
	w.Event("About to convert to expected version")
	kind, into := scope.Kind, empty()
	obj, gvk, err := scope.Serializer.DecoderToVersion(serializer, scope.HubGroupVersion).Decode(w.body, &kind, into)
	if err != nil {
		strict, isStrictError := runtime.AsStrictDecodingError(err)
		if !isStrictError || obj == nil || directive != metav1.FieldValidationWarn {
			return nil, version, decodeError(scope.Typer, err, into, gvk, w.body)
		}
		patches.Warn(w.ctx, strict.Errors())
	}
	version = gvk.GroupVersion()
	if !scope.AcceptsGroupVersion(version) {
		return nil, version, apierrors.NewBadRequest(fmt.Sprintf("the API version in the data (%s) does not match the expected API version (%s)", version, scope.Kind.GroupVersion()))
	}
	w.Event("Conversion done")
	return obj, version, nil
}

// strictTypes lists the media types that can be decoded strictly.
func strictTypes(codecs runtime.NegotiatedSerializer) (list []string) {
	for _, info := range codecs.SupportedMediaTypes() {
		if info.StrictSerializer != nil {
			list = append(list, info.MediaType)
		}
	}
	return list
}

// directiveOf returns the value of the fieldValidation parameter, or its default.
func directiveOf(asked string) string { return cmp.Or(asked, metav1.FieldValidationWarn) }

// decodeError returns the error for a body that does not decode into an object of the type of into
// (apiserver pkg/endpoints/handlers/rest.go, transformDecodeError).
func decodeError(typer runtime.ObjectTyper, cause error, into runtime.Object, found *schema.GroupVersionKind, body []byte) error {
	kinds, _, err := typer.ObjectKinds(into)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if found != nil && found.Kind != "" {
		return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", found.Kind, found.Version, kinds[0].Kind, cause))
	}
	return apierrors.NewBadRequest(fmt.Sprintf("the object provided is unrecognized (must be of type %s): %v (%s)", kinds[0].Kind, cause, summary(body)))
}

// summary returns the start of a body, in hexadecimal unless it looks like JSON.
func summary(body []byte) string {
	const most = 30
	head, more := body[:min(len(body), most)], ""
	if len(body) > most {
		more = " ..."
	}
	switch {
	case len(body) == 0:
		return "<empty>"
	case body[0] == '{':
		return string(head) + more
	}
	return hex.EncodeToString(head) + more
}

// managerOf returns the named field manager, or one derived from the user agent (apiserver
// pkg/endpoints/handlers/create.go, managerOrUserAgent).
func managerOf(named string, agent []byte) string {
	if named != "" {
		return named
	}
	prefix, _, _ := strings.Cut(string(agent), "/")
	var name strings.Builder
	for _, r := range prefix {
		if !unicode.IsPrint(r) {
			continue
		}
		if name.Len()+utf8.RuneLen(r) > metavalidation.FieldManagerMaxLength {
			break
		}
		name.WriteRune(r)
	}
	return name.String()
}
