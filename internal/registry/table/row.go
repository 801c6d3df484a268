package table

import (
	"errors"

	"github.com/larder-io/larder/cache"
)

// row returns the kept row of o. The bytes are shared.
func (p *Printer) row(o *cache.Object) ([]byte, error) {
	if o.Err() != nil {
		return nil, o.Err()
	}
	return o.ExpensiveEncoding(cache.EncodingID(p.version.RowID()), p.encodeRow)
}

// encodeRow prints o and finds out what of that depends on time.
func (p *Printer) encodeRow(o *cache.Object) ([]byte, error) {
	if p.columns != nil {
		return p.encodeColumns(o)
	}
	obj, err := p.codec.Internal(o, 0)
	if err != nil {
		return nil, err
	}
	flags, err := rowFlags(obj)
	if err != nil {
		return nil, err
	}
	probe, movable, err := newRowProbe(p, obj)
	if err != nil {
		return nil, err
	}
	if movable {
		row, err := probe.encode(flags)
		if err == nil || !errors.Is(err, errVolatile) {
			return row, err
		}
	}
	return []byte{flags | rowVolatile}, nil
}

// printedRow prints o as it is now. The row is not kept.
func (p *Printer) printedRow(o *cache.Object, flags byte) ([]byte, error) {
	obj, err := p.codec.Internal(o, 0)
	if err != nil {
		return nil, err
	}
	list, err := p.listOf(obj)
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
