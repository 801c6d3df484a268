package httpapi

import (
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"

	"github.com/larder-io/larder/internal/registry"
)

// format is what a client accepts an answer in.
type format struct {
	mediaType string // application/json, application/yaml or the protobuf one
	streams   bool   // watches can be written in it
	pretty    bool

	// convert is the kind that the client wants instead of the resource's own.
	convert *schema.GroupVersionKind
}

// negotiate finds the format for a request that i serves. Upstream's router refuses
// what it cannot produce before its handlers warn or look at parameters.
func (x *chain) negotiate(i *installed) (format, bool) {
	accept := x.Peek("Accept")
	f, known := usualFormat(accept)
	known = known && (f.mediaType == runtime.ContentTypeJSON || len(i.scope.StandardSerializers) == 0)
	header := ""
	if !known {
		header = string(accept)
		if media := produced(i, x.Verb); !i.bare && !accepts(header, media) {
			x.NoRoute(http.StatusNotAcceptable, "406: Not Acceptable\n\nAvailable representations: "+strings.Join(media, ", "))
			return format{}, false
		}
	}
	x.warn(i)
	if !known {
		var ok bool
		if f, ok = acceptedFormat(header, i.scope.Serializer.SupportedMediaTypes(), i.scope); !ok {
			media, _ := negotiation.MediaTypesForSerializer(i.scope.Serializer)
			x.Fail(negotiation.NewNotAcceptableError(media))
			return format{}, false
		}
	}
	f.pretty = f.pretty || x.Pretty()
	return f, true
}

// produced lists the media types that upstream's route for verb names.
func produced(i *installed, verb string) []string {
	media, streams := negotiation.MediaTypesForSerializer(i.scope.Serializer)
	if verb == "get" {
		return media
	}
	return append(media, streams...)
}

// usualFormat knows the headers that nearly all clients send.
func usualFormat(accept []byte) (f format, known bool) {
	switch string(accept) {
	case "", "*/*", "application/json", "application/json, */*", "application/json,*/*":
		return format{mediaType: runtime.ContentTypeJSON, streams: true}, true
	case "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf,application/json",
		"application/vnd.kubernetes.protobuf, application/json", "application/vnd.kubernetes.protobuf, */*":
		return format{mediaType: runtime.ContentTypeProtobuf, streams: true}, true
	}
	return format{}, false
}

// acceptedFormat applies upstream's rules to any header.
func acceptedFormat(accept string, supported []runtime.SerializerInfo, restrictions negotiation.EndpointRestrictions) (format, bool) {
	media, ok := negotiation.NegotiateMediaTypeOptions(accept, supported, restrictions)
	if !ok {
		return format{}, false
	}
	return format{
		mediaType: media.Accepted.MediaType,
		streams:   media.Accepted.StreamSerializer != nil,
		pretty:    media.Pretty,
		convert:   media.Convert,
	}, true
}

// media is the media type that f's bytes are made from.
func (f format) media() registry.MediaType {
	if f.mediaType == runtime.ContentTypeProtobuf {
		return registry.Protobuf
	}
	return registry.JSON // YAML is made from it
}

// isTable reports whether the client wants rows.
func (f format) isTable() bool { return f.convert != nil && f.convert.Kind == "Table" }

// shape is how much of each object the client wants, unless it wants rows.
func (f format) shape() registry.Shape {
	switch {
	case f.convert == nil:
		return registry.Full
	case f.convert.GroupVersion() == metav1beta1.SchemeGroupVersion:
		return registry.PartialV1beta1
	default:
		return registry.Partial
	}
}

// metaVersion is the version of meta.k8s.io that options are decoded in.
var metaVersion = metav1.SchemeGroupVersion
