package registry

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry/wire"
)

// Table prints a list of objects. gv is the version of meta.k8s.io that was asked
// for. Printers work on decoded objects: every object is decoded.
func (v *View) Table(ctx context.Context, objects []*cache.Object, list wire.ListMeta, options *metav1.TableOptions, gv schema.GroupVersion) (*metav1.Table, error) {
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
	return v.print(ctx, out, options, gv)
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
	table.SetGroupVersionKind(gv.WithKind("Table"))
	for i := range table.Rows {
		if err := v.rowObject(&table.Rows[i], options.IncludeObject, gv); err != nil {
			return nil, err
		}
	}
	return table, nil
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
