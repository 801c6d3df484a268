package writes

import (
	"bytes"
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/util/apihelpers"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"github.com/larder-io/larder/httpapi/negotiate"
	"github.com/larder-io/larder/internal/invariants"
)

// format is the negotiated format of the response.
type format struct {
	negotiate.Format
	serializer runtime.Serializer // nil if the media type has none
}

// negotiate sets the format of the response.
func (w *Write) negotiate() error {
	scope := w.endpoint.Scope
	supported, accept := scope.Serializer.SupportedMediaTypes(), w.Peek("Accept")
	f, usual := negotiate.Common(accept)
	if !usual || f.MediaType != runtime.ContentTypeJSON && len(scope.StandardSerializers) > 0 {
		var ok bool
		if f, ok = negotiate.Accepted(string(accept), supported, scope); !ok {
			media, _ := negotiation.MediaTypesForSerializer(scope.Serializer)
			return negotiation.NewNotAcceptableError(media)
		}
	}
	f.Pretty = f.Pretty || w.Pretty()
	w.format.Format = f
	if f.Convert == nil {
		w.format.serializer = f.Serializer(supported)
	} else {
		w.format.serializer = f.Serializer(apihelpers.GetMetaInternalVersionCodecs().SupportedMediaTypes())
	}
	return nil
}

// respond sends the result of the write: apiserver pkg/endpoints/handlers/response.go.
func (w *Write) respond(done result) {
	scope, version := w.endpoint.Scope, w.endpoint.Scope.Kind.GroupVersion()
	codecs := runtime.NegotiatedSerializer(scope.Serializer)
	w.BeginResponse()
	if w.format.Convert != nil {
		version, codecs = w.format.Convert.GroupVersion(), apihelpers.GetMetaInternalVersionCodecs()
	}
	if w.stored != nil {
		if w.respondStored(done, version) {
			return
		}
		if err := w.stored.ReplaceWithStored(done.obj); err != nil {
			w.fail(err)
			return
		}
	}
	obj, err := w.transform(done.obj)
	if err == nil && w.format.serializer == nil {
		media, _ := negotiation.MediaTypesForSerializer(codecs)
		err = negotiation.NewNotAcceptableError(media)
	}
	if err != nil {
		w.fail(err)
		return
	}
	audit.LogResponseObject(w.ctx, obj, version, codecs)
	serializer := runtime.Encoder(w.format.serializer)
	if utilfeature.DefaultFeatureGate.Enabled(features.CBORServingAndStorage) {
		serializer = runtime.UseNondeterministicEncoding(serializer)
	}
	w.BeginSerializing(w.format.MediaType, version)
	body, err := runtime.Encode(codecs.EncoderForVersion(serializer, version), obj)
	if err != nil {
		w.fail(err)
		return
	}
	w.SendCompressed(done.code, w.format.MediaType, body)
}

// respondStored sends the stored bytes and reports whether it could. The storage must have recorded the bytes, and the
// read path must serve the negotiated format.
func (w *Write) respondStored(done result, version schema.GroupVersion) bool {
	switch f := w.format; {
	case f.MediaType != runtime.ContentTypeJSON && f.MediaType != runtime.ContentTypeYAML && f.MediaType != runtime.ContentTypeProtobuf,
		f.Convert != nil && f.Convert.Kind != "PartialObjectMetadata",
		w.Audit.RecordsResponses():
		return false
	}
	view := w.endpoint.view
	if view == nil {
		return false
	}
	o := w.stored.For(done.obj)
	if o == nil {
		return false
	}
	encoder := view.Encoder(w.format.Encoding(), w.format.Projection())
	item, err := encoder.Uncached().Item(w.ctx, o)
	if err != nil {
		return false // upstream's encoder returns the error
	}
	if invariants.Enabled {
		w.compareResponse(done.obj, version, encoder.AppendObject(nil, item))
	}
	w.BeginSerializing(w.format.MediaType, version)
	w.SendObject(done.code, w.format.MediaType, w.format.Pretty, encoder, item)
	return true
}

// compareResponse panics unless body, before indentation or conversion to YAML, equals the output of upstream's encoder
// for obj.
func (w *Write) compareResponse(obj runtime.Object, version schema.GroupVersion, body []byte) {
	codecs := runtime.NegotiatedSerializer(w.endpoint.Scope.Serializer)
	if w.format.Convert != nil {
		codecs = apihelpers.GetMetaInternalVersionCodecs()
	}
	plain := negotiate.Format{MediaType: w.format.MediaType}
	if w.format.Rewritten() {
		plain.MediaType = runtime.ContentTypeJSON
	}
	err := w.stored.ReplaceWithStored(obj)
	if err == nil {
		obj, err = w.transform(obj)
	}
	var want []byte
	if err == nil {
		want, err = runtime.Encode(codecs.EncoderForVersion(plain.Serializer(codecs.SupportedMediaTypes()), version), obj)
	}
	if err != nil || !bytes.Equal(body, want) {
		panic(fmt.Sprintf("httpapi: a write gets the response %q, upstream's is %q, %v", body, want, err))
	}
}

// transform converts obj to a Table or PartialObjectMetadata if the client requests that.
func (w *Write) transform(obj runtime.Object) (out runtime.Object, err error) {
	options, err := w.format.TableOptions(w.Query)
	if err != nil {
		return nil, err
	}
	if meta.IsListType(obj) && meta.LenList(obj) == 0 {
		if err := meta.SetList(obj, []runtime.Object{}); err != nil { // encodes as [], not null
			return nil, err
		}
	}
	if _, isStatus := obj.(*metav1.Status); isStatus || w.format.Convert == nil {
		return obj, nil
	}
	apirequest.TrackTransformResponseObjectLatency(w.ctx, func() {
		switch version := w.format.Convert.GroupVersion(); w.format.Convert.Kind {
		case "Table":
			out, err = w.endpoint.table(w.ctx, obj, options, version)
		case "PartialObjectMetadata":
			out, err = partial(obj, version)
		default:
			out, err = partialList(obj, version)
		}
	})
	return out, err
}

// table returns obj as a Table.
func (e *Endpoint) table(ctx context.Context, obj runtime.Object, options *metav1.TableOptions, version schema.GroupVersion) (runtime.Object, error) {
	table, err := e.Scope.TableConvertor.ConvertToTable(ctx, obj, options)
	if err != nil {
		return nil, err
	}
	for i := range table.Rows {
		row := &table.Rows[i].Object
		switch options.IncludeObject {
		case metav1.IncludeNone:
			row.Object = nil
		case metav1.IncludeObject:
			row.Object, err = e.Scope.Convertor.ConvertToVersion(row.Object, e.Scope.Kind.GroupVersion())
		default:
			row.Object, err = partial(row.Object, version)
		}
		if err != nil {
			return nil, err
		}
	}
	return table, nil
}

// partial returns the metadata of obj.
func partial(obj runtime.Object, version schema.GroupVersion) (runtime.Object, error) {
	if meta.IsListType(obj) {
		return nil, negotiate.NotAcceptable(fmt.Sprintf("you requested PartialObjectMetadata, but the requested object is a list (%T)", obj))
	}
	object, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	out := meta.AsPartialObjectMetadata(object)
	out.SetGroupVersionKind(version.WithKind("PartialObjectMetadata"))
	return out, nil
}

// partialList returns the metadata of the objects in a list.
func partialList(list runtime.Object, version schema.GroupVersion) (runtime.Object, error) {
	of, ok := list.(metav1.ListInterface)
	if !ok {
		return nil, negotiate.NotAcceptable(fmt.Sprintf("you requested PartialObjectMetadataList, but the requested object is not a list (%T)", list))
	}
	var items []metav1.PartialObjectMetadata
	err := meta.EachListItem(list, func(obj runtime.Object) error {
		item, err := partial(obj, version)
		if err == nil {
			items = append(items, *item.(*metav1.PartialObjectMetadata))
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	head := metav1.ListMeta{ResourceVersion: of.GetResourceVersion(), Continue: of.GetContinue(), RemainingItemCount: of.GetRemainingItemCount()}
	if version == metav1beta1.SchemeGroupVersion {
		return &metav1beta1.PartialObjectMetadataList{ListMeta: head, Items: items}, nil
	}
	return &metav1.PartialObjectMetadataList{ListMeta: head, Items: items}, nil
}
