package table

import (
	"context"
	"errors"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/internal/registry/wire"
)

// Printer prints the objects of one version as tables. It is immutable.
type Printer struct {
	version *encoding.Version
	codec   *encoding.Codec // of the version
	printer rest.TableConvertor
	columns *Columns                 // of a custom resource, nil for others
	names   func() ([]string, error) // of the columns, unless they are a custom resource's
}

// Columns print the objects of one version of a custom resource.
type Columns struct {
	Table rest.TableConvertor

	// Dates are the cells with ages. Plain prints as Table does, but in those cells it prints the start of the age, as
	// in the object.
	Dates []int
	Plain rest.TableConvertor
}

// New returns a Printer that prints as a REST storage does.
func New(version *encoding.Version, printer rest.TableConvertor) *Printer {
	p := &Printer{version: version, codec: version.Codec, printer: printer}
	p.names = sync.OnceValues(p.columnNames)
	return p
}

// NewCustom returns a Printer of a custom resource.
func NewCustom(version *encoding.Version, columns *Columns) *Printer {
	p := New(version, columns.Table)
	p.columns = columns
	return p
}

// columnNames returns the names of all columns, in the order of a row's cells.
func (p *Printer) columnNames() ([]string, error) {
	// Printers do not use the context.
	empty, err := p.printer.ConvertToTable(context.Background(), p.codec.NewList(), &metav1.TableOptions{})
	if err != nil {
		return nil, err
	}
	names := make([]string, len(empty.ColumnDefinitions))
	for i, column := range empty.ColumnDefinitions {
		names[i] = column.Name
	}
	return names, nil
}

// Table prints a list of objects. gv is the requested version of meta.k8s.io. Table decodes every object.
func (p *Printer) Table(ctx context.Context, objects []*cache.Object, list wire.ListMeta, options *metav1.TableOptions, gv schema.GroupVersion) (*metav1.Table, error) {
	printed, err := p.printList(ctx, objects, list, options)
	if err != nil {
		return nil, err
	}
	return printed, p.finish(printed, options, gv)
}

// printList decodes objects and runs the storage's printer over them.
func (p *Printer) printList(ctx context.Context, objects []*cache.Object, list wire.ListMeta, options *metav1.TableOptions) (*metav1.Table, error) {
	c := p.codec
	items := make([]runtime.Object, 0, len(objects))
	for _, o := range objects {
		obj, err := c.Internal(ctx, o, 0)
		if err != nil {
			return nil, err
		}
		items = append(items, obj)
	}
	out := c.NewList()
	if err := meta.SetList(out, items); err != nil {
		return nil, fmt.Errorf("registry: table: %w", err)
	}
	if err := c.Versioner().UpdateList(out, uint64(list.Revision), list.Continue, list.Remaining); err != nil {
		return nil, fmt.Errorf("registry: table: %w", err)
	}
	return p.printer.ConvertToTable(ctx, out, options)
}

// TableOf prints one object, at revision if that is not 0.
func (p *Printer) TableOf(ctx context.Context, o *cache.Object, revision int64, options *metav1.TableOptions, gv schema.GroupVersion) (*metav1.Table, error) {
	obj, err := p.codec.Internal(ctx, o, revision)
	if err != nil {
		return nil, err
	}
	return p.print(ctx, obj, options, gv)
}

// TableOfBookmark prints the object of a bookmark.
func (p *Printer) TableOfBookmark(ctx context.Context, revision int64, initialEnd bool, options *metav1.TableOptions, gv schema.GroupVersion) (*metav1.Table, error) {
	obj, err := p.codec.Bookmark(revision, initialEnd)
	if err != nil {
		return nil, err
	}
	return p.print(ctx, obj, options, gv)
}

// print runs the storage's printer and sets the object of each row as options say.
func (p *Printer) print(ctx context.Context, obj runtime.Object, options *metav1.TableOptions, gv schema.GroupVersion) (*metav1.Table, error) {
	table, err := p.printer.ConvertToTable(ctx, obj, options)
	if err != nil {
		return nil, err
	}
	return table, p.finish(table, options, gv)
}

// finish sets the object of each row as options say.
func (p *Printer) finish(table *metav1.Table, options *metav1.TableOptions, gv schema.GroupVersion) error {
	table.SetGroupVersionKind(gv.WithKind("Table"))
	for i := range table.Rows {
		if err := p.rowObject(&table.Rows[i], options.IncludeObject, gv); err != nil {
			return err
		}
	}
	return nil
}

// rowObject sets the object of a row, as apiserver pkg/endpoints/handlers/response.go, asTable, does. The bookmark that
// ends the initial events always keeps its metadata.
func (p *Printer) rowObject(row *metav1.TableRow, include metav1.IncludeObjectPolicy, gv schema.GroupVersion) error {
	obj := row.Object.Object
	initialEnd, err := storage.HasInitialEventsEndBookmarkAnnotation(obj)
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("unable to determine if the obj has the required annotation, err: %w", err))
	}
	switch {
	case include == metav1.IncludeObject && p.codec.IsCustom():
		return nil
	case include == metav1.IncludeObject:
		row.Object.Object, err = p.codec.Scheme.ConvertToVersion(obj, p.version.GVK.GroupVersion())
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

// errRows says that a printer did not make exactly one row of an object.
var errRows = errors.New("registry: a printer did not make exactly one row of an object")

func printRow(printer rest.TableConvertor, list runtime.Object) (metav1.TableRow, error) {
	// Printers do not use the context.
	table, err := printer.ConvertToTable(context.Background(), list, &metav1.TableOptions{NoHeaders: true})
	if err != nil {
		return metav1.TableRow{}, err
	}
	if len(table.Rows) != 1 {
		return metav1.TableRow{}, errRows
	}
	return table.Rows[0], nil
}

// listOf decodes o, and returns it and a list that holds only it.
func (p *Printer) listOf(o *cache.Object) (obj, list runtime.Object, err error) {
	if obj, err = p.codec.Internal(context.Background(), o, 0); err != nil {
		return nil, nil, err
	}
	list = p.codec.NewList()
	if err := meta.SetList(list, []runtime.Object{obj}); err != nil {
		return nil, nil, fmt.Errorf("registry: table: %w", err)
	}
	return obj, list, nil
}
