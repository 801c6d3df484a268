package reads

import (
	"io"
	"sync"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/internal/invariants"
	"github.com/larder-io/larder/internal/registry/wire"
)

// prettyBody indents the JSON that body writes.
type prettyBody struct{ exchange.Body }

// indentRoom holds what Indenters use.
var indentRoom = sync.Pool{New: func() any { return new([]byte) }}

func (b prettyBody) WriteTo(w io.Writer) (int64, error) {
	out := exchange.NewChunkWriter(w)
	defer out.Release()
	room := indentRoom.Get().(*[]byte)
	defer func() {
		if invariants.Enabled {
			invariants.Overwrite(*room)
		}
		indentRoom.Put(room)
	}()
	in := wire.NewIndenter(out, *room)
	_, err := b.Body.WriteTo(in)
	rest, flushErr := in.Flush()
	*room = rest
	if err == nil {
		err = flushErr
	}
	if err != nil {
		return out.Written, err
	}
	out.Flush()
	return out.Written, out.Err
}

// gzipBody compresses what body writes.
type gzipBody struct{ exchange.Body }

func (b gzipBody) WriteTo(w io.Writer) (int64, error) {
	out := exchange.NewChunkWriter(w)
	defer out.Release()
	z := exchange.GetGzip(out)
	defer exchange.PutGzip(z)
	if _, err := b.Body.WriteTo(z); err != nil {
		return out.Written, err
	}
	if err := z.Close(); err != nil {
		return out.Written, err
	}
	out.Flush()
	return out.Written, out.Err
}
