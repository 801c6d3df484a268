package negotiate

import (
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	internalscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"

	"github.com/larder-io/larder/httpapi/request"
	"github.com/larder-io/larder/internal/registry/encoding"
)

// Format is the form of a response that a client accepts.
type Format struct {
	MediaType string // application/json, application/yaml or the protobuf one
	Streams   bool   // watches can be written in it
	Pretty    bool

	// Convert is the kind that the client wants instead of the resource's own.
	Convert *schema.GroupVersionKind
}

// Common parses the Accept headers that nearly all clients send. known is false for others.
func Common(accept []byte) (f Format, known bool) {
	switch string(accept) {
	case "", "*/*", "application/json", "application/json, */*", "application/json,*/*":
		return Format{MediaType: runtime.ContentTypeJSON, Streams: true}, true
	case "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf,application/json",
		"application/vnd.kubernetes.protobuf, application/json", "application/vnd.kubernetes.protobuf, */*":
		return Format{MediaType: runtime.ContentTypeProtobuf, Streams: true}, true
	}
	return Format{}, false
}

// Accepted parses any Accept header by upstream's rules. It returns false if none of supported is accepted.
func Accepted(accept string, supported []runtime.SerializerInfo, restrictions negotiation.EndpointRestrictions) (Format, bool) {
	media, ok := negotiation.NegotiateMediaTypeOptions(accept, supported, restrictions)
	if !ok {
		return Format{}, false
	}
	return Format{
		MediaType: media.Accepted.MediaType,
		Streams:   media.Accepted.StreamSerializer != nil,
		Pretty:    media.Pretty,
		Convert:   media.Convert,
	}, true
}

// Encoding returns the media type of the cached bytes from which a response in f is made.
func (f Format) Encoding() encoding.MediaType {
	if f.MediaType == runtime.ContentTypeProtobuf {
		return encoding.Protobuf
	}
	return encoding.JSON // YAML is made from it
}

// Serializer returns the serializer for f among supported, nil if there is none.
func (f Format) Serializer(supported []runtime.SerializerInfo) runtime.Serializer {
	info, _ := runtime.SerializerInfoForMediaType(supported, f.MediaType)
	if f.Pretty && info.PrettySerializer != nil {
		return info.PrettySerializer
	}
	return info.Serializer
}

// IsTable reports whether the client requests a Table.
func (f Format) IsTable() bool { return f.Convert != nil && f.Convert.Kind == "Table" }

// Projection returns which part of each object the client requests, unless it requests a Table.
func (f Format) Projection() encoding.Projection {
	switch {
	case f.Convert == nil:
		return encoding.Full
	case f.Convert.GroupVersion() == metav1beta1.SchemeGroupVersion:
		return encoding.PartialV1beta1
	default:
		return encoding.Partial
	}
}

// Rewritten reports whether a response in f is made from JSON.
func (f Format) Rewritten() bool {
	return f.MediaType == runtime.ContentTypeYAML || f.Pretty && f.MediaType == runtime.ContentTypeJSON
}

// TableOptions decodes and validates the options of a Table in query. It returns nil if f is no Table.
func (f Format) TableOptions(query request.Query) (*metav1.TableOptions, error) {
	if !f.IsTable() {
		return nil, nil
	}
	options := &metav1.TableOptions{}
	if err := internalscheme.ParameterCodec.DecodeParameters(query.Values(), metav1.SchemeGroupVersion, options); err != nil {
		return nil, err
	}
	switch errs := validation.ValidateTableOptions(options); len(errs) {
	case 0:
		return options, nil
	case 1:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("Unable to convert to Table as requested: %v", errs[0].Error()))
	default:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("Unable to convert to Table as requested: %v", errs))
	}
}

// NotAcceptable returns the error 406 with a message.
func NotAcceptable(message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable, Message: message,
	}}
}
