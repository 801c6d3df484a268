package table

import (
	"bytes"
	"context"
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/internal/registry/wire"
)

// Rows is a table that is written from cached rows and items. It may be written more than once. Its ages are those of
// the time of its creation.
//
// Items are the metadata of the objects or whole objects. They are the largest part of a table, and Rows does not hold
// them. It gets them from the objects while it writes, and encodes uncached ones directly into the output.
type Rows struct {
	head    []byte   // up to the first row
	rows    [][]byte // cached rows, shared
	objects []*cache.Object
	none    bool                // no items, unless the row has rowMetadata
	source  encoding.ItemSource // of the items
	kind    []byte              // the beginning of whole objects whose items lack kind and apiVersion
	now     time.Time
	size    int // without items
	buffer  []byte
}

const (
	noObject = "null"
	rowEnd   = "}"
	rowsEnd  = "]}\n"
)

// Rows returns the result of [Printer.Table] in JSON. It decodes only objects without cached rows, one at a time. It
// takes ownership of objects. Rows returns nil if upstream's printer does not make one row for each object in order.
func (p *Printer) Rows(ctx context.Context, objects []*cache.Object, list wire.ListMeta, options *metav1.TableOptions, gv schema.GroupVersion) (*Rows, error) {
	projection := encoding.Partial
	switch options.IncludeObject {
	case metav1.IncludeObject:
		projection = encoding.Full
	case "", metav1.IncludeMetadata, metav1.IncludeNone:
		if gv == metav1beta1.SchemeGroupVersion {
			projection = encoding.PartialV1beta1
		}
	default:
		return nil, nil
	}
	if len(objects) == 0 || sortedTables[p.codec.GroupResource] {
		return nil, nil
	}
	empty, err := p.printList(ctx, nil, list, options)
	if err != nil {
		return nil, err
	}
	t := &Rows{now: time.Now(), rows: make([][]byte, 0, len(objects)), objects: objects}
	t.none = options.IncludeObject == metav1.IncludeNone
	t.source = p.version.Encoder(encoding.JSON, projection).Source(objects)
	t.kind = bytes.TrimSuffix(t.source.AppendObject(nil, []byte("{}")), []byte("}\n"))
	if len(t.kind) == len("{") {
		t.kind = nil
	}
	empty.SetGroupVersionKind(gv.WithKind("Table"))
	empty.Rows = []metav1.TableRow{}
	head, err := marshalJSON(empty)
	if err != nil {
		return nil, err
	}
	t.head = bytes.TrimSuffix(head, []byte("]}")) // up to where the rows belong
	for _, o := range objects {
		err := t.add(p, o)
		switch {
		case errors.Is(err, errRows):
			return nil, nil
		case err != nil:
			return nil, err
		}
	}
	t.size += len(t.head) + len(objects) - 1 + len(rowsEnd)
	return t, nil
}

// sortedTables lists the resources whose printers sort the rows of a list (kubernetes
// pkg/printers/internalversion/printers.go).
var sortedTables = map[schema.GroupResource]bool{
	{Group: "flowcontrol.apiserver.k8s.io", Resource: "flowschemas"}: true,
}

func (r *Rows) add(p *Printer, o *cache.Object) error {
	row, err := p.row(o)
	if err != nil {
		return err
	}
	if row[0]&rowVolatile != 0 {
		if row, err = p.printedRow(o, row[0]); err != nil {
			return err
		}
	}
	r.buffer = appendRow(r.buffer[:0], row, r.now)
	r.rows = append(r.rows, row)
	r.size += len(r.buffer) + len(rowEnd)
	return nil
}

// cached returns the object member of the i-th row if it is cached.
func (r *Rows) cached(i int) ([]byte, bool) {
	if r.none && r.rows[i][0]&rowMetadata == 0 {
		return []byte(noObject), true
	}
	return r.source.Cached(r.objects[i])
}

// Cached reports whether the items of all rows are cached.
func (r *Rows) Cached() bool {
	for i := range r.rows {
		if _, ok := r.cached(i); !ok {
			return false
		}
	}
	return true
}

// Size returns the length of the table in bytes. It encodes uncached items.
func (r *Rows) Size() (int, error) {
	size := r.size + len(r.kind)*len(r.objects)
	for i, o := range r.objects {
		item, ok := r.cached(i)
		if !ok {
			var err error
			if item, r.buffer, err = r.source.Next(r.buffer[:0], o); err != nil {
				return 0, err
			}
			size += len(r.buffer)
		}
		size += len(item)
	}
	return size, nil
}

// Write writes the table piece by piece. A piece is valid until write returns.
func (r *Rows) Write(write func(p []byte)) error {
	write(r.head)
	for i, row := range r.rows {
		r.buffer = r.buffer[:0]
		if i > 0 {
			r.buffer = append(r.buffer, rowEnd+","...)
		}
		r.buffer = appendRow(r.buffer, row, r.now)
		r.buffer = append(r.buffer, r.kind...)
		start := len(r.buffer)
		item, ok := r.cached(i)
		if !ok {
			var err error
			if item, r.buffer, err = r.source.Next(r.buffer, r.objects[i]); err != nil {
				return err
			}
		}
		switch { // after the kind, a comma takes the place of the item's brace
		case len(r.kind) == 0:
		case item == nil:
			r.buffer[start] = ','
		default:
			r.buffer, item = append(r.buffer, ','), item[1:]
		}
		write(r.buffer)
		if item != nil {
			write(item)
		}
	}
	write([]byte(rowEnd + rowsEnd))
	return nil
}
