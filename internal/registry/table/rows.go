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

// Rows is a table that is written from rows and metadata that are kept. It may be
// written more than once; its ages are those of when it was made.
//
// It holds no metadata, which are larger than all else: they are asked for once more
// when they are written.
type Rows struct {
	head    []byte   // up to the first row
	rows    [][]byte // kept rows, shared
	objects []*cache.Object
	none    bool                                // no metadata, but for rows that insist
	item    func(*cache.Object) ([]byte, error) // gives them
	now     time.Time
	size    int
	room    []byte
}

const (
	noObject = "null"
	rowEnd   = "}"
	rowsEnd  = "]}\n"
)

// Rows returns what [Printer.Table] returns, encoded in JSON. Objects whose rows are
// kept are not decoded, others one at a time. The result uses objects until it is
// written. It is nil where rows hold whole objects, and where there is not one row for
// each object in its place.
func (p *Printer) Rows(ctx context.Context, objects []*cache.Object, list wire.ListMeta, options *metav1.TableOptions, gv schema.GroupVersion) (*Rows, error) {
	switch options.IncludeObject {
	case "", metav1.IncludeMetadata, metav1.IncludeNone:
	default:
		return nil, nil
	}
	if len(objects) == 0 || sortedTables[p.codec.GroupResource()] {
		return nil, nil
	}
	empty, err := p.printList(ctx, nil, list, options)
	if err != nil {
		return nil, err
	}
	t := &Rows{now: time.Now(), rows: make([][]byte, 0, len(objects)), objects: objects}
	t.none = options.IncludeObject == metav1.IncludeNone
	t.item = p.version.Encoder(encoding.JSON, partial(gv)).Source(objects).Item
	if t.head, err = tableHead(*empty, gv); err != nil {
		return nil, err
	}
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

// sortedTables lists the resources whose printers put the rows of a list in an order
// of their own (kubernetes pkg/printers/internalversion/printers.go).
var sortedTables = map[schema.GroupResource]bool{
	{Group: "flowcontrol.apiserver.k8s.io", Resource: "flowschemas"}: true,
}

// partial is the projection that rows of a version of meta.k8s.io show of their objects.
func partial(gv schema.GroupVersion) encoding.Projection {
	if gv == metav1beta1.SchemeGroupVersion {
		return encoding.PartialV1beta1
	}
	return encoding.Partial
}

// tableHead is a table without rows up to where they belong.
func tableHead(table metav1.Table, gv schema.GroupVersion) ([]byte, error) {
	table.SetGroupVersionKind(gv.WithKind("Table"))
	table.Rows = []metav1.TableRow{}
	head, err := marshalJSON(table)
	return bytes.TrimSuffix(head, []byte("]}")), err
}

// add adds the row of o.
func (t *Rows) add(p *Printer, o *cache.Object) error {
	row, err := p.row(o)
	if err != nil {
		return err
	}
	if row[0]&rowVolatile != 0 {
		if row, err = p.printedRow(o, row[0]); err != nil {
			return err
		}
	}
	item, err := t.metadata(row, o)
	if err != nil {
		return err
	}
	t.room = appendRow(t.room[:0], row, t.now)
	t.rows = append(t.rows, row)
	t.size += len(t.room) + len(item) + len(rowEnd)
	return nil
}

// metadata returns what the row of o has for an object.
func (t *Rows) metadata(row []byte, o *cache.Object) ([]byte, error) {
	if t.none && row[0]&rowMetadata == 0 {
		return []byte(noObject), nil
	}
	return t.item(o)
}

// Size is the number of bytes that the table has.
func (t *Rows) Size() int { return t.size }

// Write writes the table piece by piece; small pieces come in room that is used again
// for the next.
func (t *Rows) Write(write func(p []byte)) error {
	write(t.head)
	var ahead [encoding.Ahead][]byte
	for i, row := range t.rows {
		if i%encoding.Ahead == 0 {
			for j := i; j < min(i+encoding.Ahead, len(t.rows)); j++ {
				item, err := t.metadata(t.rows[j], t.objects[j])
				if err != nil {
					return err
				}
				ahead[j-i] = item
			}
		}
		t.room = t.room[:0]
		if i > 0 {
			t.room = append(t.room, ',')
		}
		t.room = appendRow(t.room, row, t.now)
		item := ahead[i%encoding.Ahead]
		write(t.room)
		write(item)
		write([]byte(rowEnd))
	}
	write([]byte(rowsEnd))
	return nil
}
