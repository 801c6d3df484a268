package exchange

import (
	"io"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/internal/registry/wire"
)

// objectBody writes an object that fits into the buffer of a ChunkWriter, and is not compressed.
type objectBody struct {
	encoder *encoding.Encoder
	item    []byte
}

func (b *objectBody) WriteTo(w io.Writer) (int64, error) {
	out := NewChunkWriter(w)
	defer out.Release()
	out.Buf = b.encoder.AppendObject(out.Buf, b.item)
	out.Flush()
	return out.Written, out.Err
}

func (b *objectBody) Close() error { return nil }

// SendObject answers with an object. item, its encoding by encoder, must not change. The media type is
// that of encoder, or YAML, which is made from JSON.
func (x *Exchange) SendObject(code int, mediaType string, pretty bool, encoder *encoding.Encoder, item []byte) {
	size := encoder.ObjectSize(item)
	rewritten := mediaType == runtime.ContentTypeYAML || pretty && mediaType == runtime.ContentTypeJSON
	if size <= RecordSize && !rewritten {
		x.object = objectBody{encoder, item}
		x.SendFrom(code, mediaType, size, &x.object)
		return
	}
	body := encoder.AppendObject(make([]byte, 0, size), item)
	if rewritten {
		x.SendJSON(code, mediaType, pretty, body)
	} else {
		x.SendCompressed(code, mediaType, body)
	}
}

// SendJSON answers with a whole JSON body, as YAML if that is the media type.
func (x *Exchange) SendJSON(code int, mediaType string, pretty bool, body []byte) {
	var err error
	switch {
	case mediaType == runtime.ContentTypeYAML:
		body, err = wire.YAML(body)
	case pretty:
		body, err = wire.Pretty(body)
	}
	if err != nil {
		x.Fail(err)
		return
	}
	x.SendCompressed(code, mediaType, body)
}
