package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry/wire"
)

// Table prints a list of objects. gv is the version of meta.k8s.io that was asked
// for. Printers work on decoded objects: every object is decoded.
func (v *View) Table(ctx context.Context, objects []*cache.Object, list wire.ListMeta, options *metav1.TableOptions, gv schema.GroupVersion) (*metav1.Table, error) {
	printed, err := v.printList(ctx, objects, list, options)
	if err != nil {
		return nil, err
	}
	return printed, v.finish(printed, options, gv)
}

// printList decodes objects and runs the storage's printer over them.
func (v *View) printList(ctx context.Context, objects []*cache.Object, list wire.ListMeta, options *metav1.TableOptions) (*metav1.Table, error) {
	c := v.codec()
	items := make([]runtime.Object, 0, len(objects))
	for _, o := range objects {
		obj, err := c.internal(o, 0)
		if err != nil {
			return nil, err
		}
		items = append(items, obj)
	}
	out := c.newListFunc()
	if err := meta.SetList(out, items); err != nil {
		return nil, fmt.Errorf("registry: table: %w", err)
	}
	if err := c.versioner.UpdateList(out, uint64(list.Revision), list.Continue, list.Remaining); err != nil {
		return nil, fmt.Errorf("registry: table: %w", err)
	}
	return v.table.ConvertToTable(ctx, out, options)
}

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

// Rows returns what [View.Table] returns, encoded in JSON. Objects whose rows are
// kept are not decoded, others one at a time. It uses objects until it is written, and
// returns nil where rows hold whole
// objects, or are not one for each object in its place.
func (v *View) Rows(ctx context.Context, objects []*cache.Object, list wire.ListMeta, options *metav1.TableOptions, gv schema.GroupVersion) (*Rows, error) {
	switch options.IncludeObject {
	case "", metav1.IncludeMetadata, metav1.IncludeNone:
	default:
		return nil, nil
	}
	if len(objects) == 0 || sortedTables[v.Resource.GroupResource] {
		return nil, nil
	}
	empty, err := v.printList(ctx, nil, list, options)
	if err != nil {
		return nil, err
	}
	t := &Rows{now: time.Now(), rows: make([][]byte, 0, len(objects)), objects: objects}
	t.none = options.IncludeObject == metav1.IncludeNone
	t.item = v.Form(JSON, partialShape(gv)).Source(objects).Item
	if t.head, err = tableHead(*empty, gv); err != nil {
		return nil, err
	}
	for _, o := range objects {
		err := t.add(v, o)
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

// partialShape is the shape of the metadata in rows of a version of meta.k8s.io.
func partialShape(gv schema.GroupVersion) Shape {
	if gv == metav1beta1.SchemeGroupVersion {
		return PartialV1beta1
	}
	return Partial
}

// tableHead is a table without rows up to where they belong.
func tableHead(table metav1.Table, gv schema.GroupVersion) ([]byte, error) {
	table.SetGroupVersionKind(gv.WithKind("Table"))
	table.Rows = []metav1.TableRow{}
	head, err := marshalJSON(table)
	return bytes.TrimSuffix(head, []byte("]}")), err
}

// add adds the row of o.
func (t *Rows) add(v *View, o *cache.Object) error {
	row, err := v.row(o)
	if err != nil {
		return err
	}
	if row[0]&rowVolatile != 0 {
		if row, err = v.printedRow(o, row[0]); err != nil {
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
	var ahead [Ahead][]byte
	for i, row := range t.rows {
		if i%Ahead == 0 {
			for j := i; j < min(i+Ahead, len(t.rows)); j++ {
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
		item := ahead[i%Ahead]
		write(t.room)
		write(item)
		write([]byte(rowEnd))
	}
	write([]byte(rowsEnd))
	return nil
}

// TableOf prints one object, at revision if that is not 0.
func (v *View) TableOf(ctx context.Context, o *cache.Object, revision int64, options *metav1.TableOptions, gv schema.GroupVersion) (*metav1.Table, error) {
	obj, err := v.codec().internal(o, revision)
	if err != nil {
		return nil, err
	}
	return v.print(ctx, obj, options, gv)
}

// TableOfBookmark prints the object of a bookmark.
func (v *View) TableOfBookmark(ctx context.Context, revision int64, initialEnd bool, options *metav1.TableOptions, gv schema.GroupVersion) (*metav1.Table, error) {
	obj, err := v.codec().bookmark(revision, initialEnd)
	if err != nil {
		return nil, err
	}
	return v.print(ctx, obj, options, gv)
}

// print runs the storage's printer and puts into each row what options ask for.
func (v *View) print(ctx context.Context, obj runtime.Object, options *metav1.TableOptions, gv schema.GroupVersion) (*metav1.Table, error) {
	table, err := v.table.ConvertToTable(ctx, obj, options)
	if err != nil {
		return nil, err
	}
	return table, v.finish(table, options, gv)
}

// finish puts into each row what options ask for.
func (v *View) finish(table *metav1.Table, options *metav1.TableOptions, gv schema.GroupVersion) error {
	table.SetGroupVersionKind(gv.WithKind("Table"))
	for i := range table.Rows {
		if err := v.rowObject(&table.Rows[i], options.IncludeObject, gv); err != nil {
			return err
		}
	}
	return nil
}

// rowObject follows apiserver pkg/endpoints/handlers/response.go, asTable: the
// bookmark that ends the initial events keeps its metadata whatever was asked.
func (v *View) rowObject(row *metav1.TableRow, include metav1.IncludeObjectPolicy, gv schema.GroupVersion) error {
	obj := row.Object.Object
	initialEnd, err := storage.HasInitialEventsEndBookmarkAnnotation(obj)
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("unable to determine if the obj has the required annotation, err: %w", err))
	}
	switch {
	case include == metav1.IncludeObject && v.custom != nil:
		return nil
	case include == metav1.IncludeObject:
		row.Object.Object, err = v.Resource.codec.scheme.ConvertToVersion(obj, v.GVK.GroupVersion())
		return err
	case include == metav1.IncludeMetadata, include == "", initialEnd:
		accessor, err := meta.Accessor(obj)
		if err != nil {
			return err
		}
		partial := meta.AsPartialObjectMetadata(accessor)
		partial.SetGroupVersionKind(gv.WithKind("PartialObjectMetadata"))
		row.Object.Object = partial
		return nil
	case include == metav1.IncludeNone:
		row.Object.Object = nil
		return nil
	default:
		return apierrors.NewBadRequest(fmt.Sprintf("unrecognized includeObject value: %q", include))
	}
}
