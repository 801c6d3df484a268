package writes

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	internalscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	requestmetrics "k8s.io/apiserver/pkg/endpoints/handlers/metrics"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/warning"

	"go.opentelemetry.io/otel/attribute"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/patches"
	"github.com/larder-io/larder/httpapi/socket"
)

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
		return apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: kind}, "", errs)
	}
	options.GetObjectKind().SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind(kind))
	return nil
}

// input returns the serializer for the Content-Type of the request.
func (w *Write) input() (runtime.SerializerInfo, error) {
	return negotiation.NegotiateInputSerializerForMediaType(string(w.Peek("Content-Type")), false, w.endpoint.Scope.Serializer)
}

// decode decodes the body to the hub version. Directive decides whether unknown and duplicate fields
// are ignored, warned of or refused. Version is the API version of the body.
func (w *Write) decode(info runtime.SerializerInfo, directive string, empty func() runtime.Object) (obj runtime.Object, version schema.GroupVersion, err error) {
	scope := w.endpoint.Scope
	serializer := info.Serializer
	if isStrict(directive) {
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

// isStrict reports whether a directive asks for a check of unknown and duplicate fields.
func isStrict(directive string) bool {
	return directive == metav1.FieldValidationWarn || directive == metav1.FieldValidationStrict
}

// directiveOf returns the value of the fieldValidation parameter, or its default.
func directiveOf(asked string) string {
	if asked == "" {
		return metav1.FieldValidationWarn
	}
	return asked
}

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

// managerOf returns the named field manager, or else one made of the user agent (apiserver
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

// warn sends a warning to the client.
func warn(ctx context.Context, text string) { warning.AddWarning(ctx, "", text) }
