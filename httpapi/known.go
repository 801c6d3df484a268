package httpapi

import (
	"bytes"
	"fmt"
	"io"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers"

	"github.com/larder-io/larder/internal/invariants"
	"github.com/larder-io/larder/internal/registry"
)

// writing is perRequest for handlers that write: they need not encode the objects that
// they read and wrote, for the cache has their bytes.
func (b *handlerBuilder) writing(build func(*handlers.RequestScope) http.HandlerFunc) http.HandlerFunc {
	view := b.endpoint.View
	if view == nil {
		return perRequest(func() http.HandlerFunc { return build(b.scope) })
	}
	var media [2]runtime.Encoder
	for _, info := range b.scope.Serializer.SupportedMediaTypes() {
		switch info.MediaType {
		case runtime.ContentTypeJSON:
			media[registry.JSON] = info.Serializer
		case runtime.ContentTypeProtobuf:
			media[registry.Protobuf] = info.Serializer
		}
	}
	return func(w http.ResponseWriter, req *http.Request) {
		ctx, known := registry.WithKnown(req.Context())
		scope := *b.scope
		scope.Serializer = &knownSerializer{scope.Serializer, view, media, known}
		build(&scope)(w, req.WithContext(ctx))
	}
}

// knownSerializer is a serializer for one request, whose encoders take the bytes of objects
// that are known.
type knownSerializer struct {
	runtime.NegotiatedSerializer
	view  *registry.View
	media [2]runtime.Encoder // by registry.MediaType; others are not known
	known *registry.Known
}

// EncoderForVersion implements runtime.NegotiatedSerializer.
func (s *knownSerializer) EncoderForVersion(e runtime.Encoder, gv runtime.GroupVersioner) runtime.Encoder {
	encoder := s.NegotiatedSerializer.EncoderForVersion(e, gv)
	if version, one := gv.(schema.GroupVersion); !one || version != s.view.GVK.GroupVersion() {
		return encoder
	}
	for media, plain := range s.media {
		if form := s.view.Form(registry.MediaType(media), registry.Full); plain == e && form.Planned() {
			return &knownEncoder{encoder, form, s.known}
		}
	}
	return encoder
}

type knownEncoder struct {
	runtime.Encoder
	form  *registry.Form
	known *registry.Known
}

// Encode implements runtime.Encoder.
func (e *knownEncoder) Encode(obj runtime.Object, w io.Writer) error {
	o := e.known.Find(obj)
	if o == nil {
		return e.Encoder.Encode(obj, w)
	}
	item, err := e.form.Passing().Item(o)
	if err != nil {
		return e.Encoder.Encode(obj, w)
	}
	data := e.form.AppendObject(make([]byte, 0, e.form.ObjectSize(item)), item)
	if invariants.Enabled {
		e.check(obj, data)
	}
	_, err = w.Write(data)
	return err
}

// check panics unless data is what obj encodes to.
func (e *knownEncoder) check(obj runtime.Object, data []byte) {
	var want bytes.Buffer
	if err := e.Encoder.Encode(obj, &want); err != nil || !bytes.Equal(data, want.Bytes()) {
		panic(fmt.Sprintf("httpapi: known object is encoded as %q, not %q (%v)", data, want.Bytes(), err))
	}
}
