package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"

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
	c := v.Resource.codec
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

// tableChunk is how many objects a long table has decoded at a time.
const tableChunk = 256

// AppendTable appends to dst what Table returns, encoded in JSON, without holding
// all objects decoded at once. The metadata in the rows are the bytes that
// PartialObjectMetadata is served from. It does nothing and returns false where
// rows hold something else, or are not one for each object.
func (v *View) AppendTable(ctx context.Context, dst []byte, objects []*cache.Object, list wire.ListMeta, options *metav1.TableOptions, gv schema.GroupVersion) ([]byte, bool, error) {
	if len(objects) == 0 || options.IncludeObject != "" && options.IncludeObject != metav1.IncludeMetadata {
		return dst, false, nil
	}
	shape := Partial
	if gv == metav1beta1.SchemeGroupVersion {
		shape = PartialV1beta1
	}
	begin := len(dst)
	for chunk := range slices.Chunk(objects, tableChunk) {
		table, err := v.printList(ctx, chunk, list, options)
		if err != nil {
			return dst[:begin], true, err
		}
		if len(table.Rows) != len(chunk) {
			return dst[:begin], false, nil
		}
		if len(dst) > begin {
			dst = append(dst, ',')
		} else if dst, err = appendTableHead(dst, *table, gv); err != nil {
			return dst[:begin], true, err
		}
		if dst, err = appendRows(dst, table.Rows, chunk, v.Form(JSON, shape)); err != nil {
			return dst[:begin], true, err
		}
	}
	return append(dst, "]}\n"...), true, nil
}

// appendTableHead appends a table up to its first row.
func appendTableHead(dst []byte, table metav1.Table, gv schema.GroupVersion) ([]byte, error) {
	table.SetGroupVersionKind(gv.WithKind("Table"))
	table.Rows = []metav1.TableRow{}
	head, err := json.Marshal(table)
	if err != nil {
		return dst, fmt.Errorf("registry: table: %w", err)
	}
	return append(dst, bytes.TrimSuffix(head, []byte("]}"))...), nil
}

// appendRows appends rows, the i-th with the metadata of the i-th object.
func appendRows(dst []byte, rows []metav1.TableRow, objects []*cache.Object, form *Form) ([]byte, error) {
	for i := range rows {
		if i > 0 {
			dst = append(dst, ',')
		}
		cells, err := json.Marshal(rows[i].Cells)
		if err != nil {
			return dst, fmt.Errorf("registry: table: %w", err)
		}
		dst = append(append(dst, `{"cells":`...), cells...)
		if len(rows[i].Conditions) > 0 {
			conditions, err := json.Marshal(rows[i].Conditions)
			if err != nil {
				return dst, fmt.Errorf("registry: table: %w", err)
			}
			dst = append(append(dst, `,"conditions":`...), conditions...)
		}
		item, err := form.Item(objects[i])
		if err != nil {
			return dst, err
		}
		dst = append(append(append(dst, `,"object":`...), item...), '}')
	}
	return dst, nil
}

// TableOf prints one object, at revision if that is not 0.
func (v *View) TableOf(ctx context.Context, o *cache.Object, revision int64, options *metav1.TableOptions, gv schema.GroupVersion) (*metav1.Table, error) {
	obj, err := v.Resource.codec.internal(o, revision)
	if err != nil {
		return nil, err
	}
	return v.print(ctx, obj, options, gv)
}

// TableOfBookmark prints the object of a bookmark.
func (v *View) TableOfBookmark(ctx context.Context, revision int64, initialEnd bool, options *metav1.TableOptions, gv schema.GroupVersion) (*metav1.Table, error) {
	obj, err := v.Resource.codec.bookmark(revision, initialEnd)
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
