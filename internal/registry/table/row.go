package table

import (
	"encoding/binary"
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry/jsontext"
)

// row returns the cached row of o. The bytes are shared.
func (p *Printer) row(o *cache.Object) ([]byte, error) {
	if o.Err() != nil {
		return nil, o.Err()
	}
	return o.ExpensiveEncoding(p.version.RowID, p.encodeRow)
}

// encodeRow prints o once for all readers, without the ages.
func (p *Printer) encodeRow(o *cache.Object) ([]byte, error) {
	obj, list, err := p.listOf(o)
	if err != nil {
		return nil, err
	}
	flags := byte(0)
	if initialEnd, err := storage.HasInitialEventsEndBookmarkAnnotation(obj); err != nil {
		return nil, err
	} else if initialEnd {
		flags = rowMetadata
	}
	begun := time.Now()
	row, err := printRow(p.printer, list)
	if err != nil {
		return nil, err
	}
	found, err := p.agesIn(row, obj, list, begun, time.Now())
	switch {
	case errors.Is(err, errVolatile):
		return []byte{flags | rowVolatile}, nil
	case err != nil:
		return nil, err
	}
	var ages []byte
	last := 0
	text, err := appendText(nil, row, func(dst []byte, i int) ([]byte, error) {
		a, aged := found[i]
		if !aged {
			data, err := marshalJSON(row.Cells[i])
			return append(dst, data...), err
		}
		dst = jsontext.AppendString(dst, a.before)
		dst = dst[:len(dst)-1] // the quote
		ages = binary.AppendUvarint(ages, uint64(len(dst)-last))
		ages = binary.AppendVarint(ages, a.since.Unix())
		ages = binary.AppendUvarint(ages, uint64(a.since.Nanosecond()))
		last = len(dst)
		return append(dst, jsontext.AppendString(nil, a.after)[1:]...), nil
	})
	if err != nil {
		return nil, err
	}
	return joinRow(flags, text, ages), nil
}

// agesIn finds the cells with ages in a row of obj, the only item of list. The row was printed between
// begun and ended.
func (p *Printer) agesIn(row metav1.TableRow, obj, list runtime.Object, begun, ended time.Time) (map[int]age, error) {
	if p.columns != nil {
		return p.datesOf(list, row)
	}
	names, err := p.names()
	if err != nil {
		return nil, err
	}
	found := make(map[int]age)
	for i := range row.Cells {
		name := ""
		if i < len(names) {
			name = names[i]
		}
		cell, _ := row.Cells[i].(string)
		since := sinceOf(obj, name, cell)
		if len(since) == 0 {
			continue
		}
		a, ok := findAge(cell, since, begun, ended)
		if !ok {
			return nil, errVolatile
		}
		found[i] = a
	}
	return found, nil
}

// printedRow prints o for one reader.
func (p *Printer) printedRow(o *cache.Object, flags byte) ([]byte, error) {
	_, list, err := p.listOf(o)
	if err != nil {
		return nil, err
	}
	row, err := printRow(p.printer, list)
	if err != nil {
		return nil, err
	}
	text, err := appendText(nil, row, func(dst []byte, i int) ([]byte, error) {
		data, err := marshalJSON(row.Cells[i])
		return append(dst, data...), err
	})
	return joinRow(flags&^rowVolatile, text, nil), err
}

// datesOf finds the cells with ages in a row of a custom resource. No other cell depends on
// the time (apiextensions-apiserver pkg/registry/customresource/tableconvertor).
func (p *Printer) datesOf(list runtime.Object, row metav1.TableRow) (map[int]age, error) {
	if len(p.columns.Dates) == 0 {
		return nil, nil
	}
	plain, err := printRow(p.columns.Plain, list)
	if err != nil {
		return nil, err
	}
	found := make(map[int]age)
	for _, i := range p.columns.Dates {
		if i >= len(row.Cells) || i >= len(plain.Cells) || row.Cells[i] == nil {
			continue // there is no such column, or nothing in it
		}
		text, _ := plain.Cells[i].(string)
		var t metav1.Time
		if t.UnmarshalQueryParameter(text) == nil && !t.IsZero() {
			found[i] = age{since: t.Time}
		}
	}
	return found, nil
}
