package table

import (
	"encoding/binary"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/larder-io/larder/cache"
)

// encodeColumns prints o once for all readers: nothing but its dates depends on time
// (apiextensions-apiserver pkg/registry/customresource/tableconvertor).
func (p *Printer) encodeColumns(o *cache.Object) ([]byte, error) {
	obj, err := p.codec.Internal(o, 0)
	if err != nil {
		return nil, err
	}
	flags, err := rowFlags(obj)
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
	since, err := p.datesOf(list, row)
	if err != nil {
		return nil, err
	}
	var ages []byte
	last := 0
	text, err := appendText(nil, row, func(dst []byte, i int) ([]byte, error) {
		t, dated := since[i]
		if !dated {
			data, err := marshalJSON(row.Cells[i])
			return append(dst, data...), err
		}
		dst = append(dst, '"')
		ages = binary.AppendUvarint(ages, uint64(len(dst)-last))
		ages = binary.AppendVarint(ages, t.Unix())
		ages = binary.AppendUvarint(ages, uint64(t.Nanosecond()))
		last = len(dst)
		return append(dst, '"'), nil
	})
	if err != nil {
		return nil, err
	}
	return joinRow(flags, text, ages), nil
}

// datesOf finds the cells of row that hold ages, and what those are counted from.
func (p *Printer) datesOf(list runtime.Object, row metav1.TableRow) (map[int]metav1.Time, error) {
	if len(p.columns.Dates) == 0 {
		return nil, nil
	}
	plain, err := printRow(p.columns.Plain, list)
	if err != nil {
		return nil, err
	}
	since := make(map[int]metav1.Time)
	for _, i := range p.columns.Dates {
		if i >= len(row.Cells) || i >= len(plain.Cells) || row.Cells[i] == nil {
			continue // there is no such column, or nothing in it
		}
		text, _ := plain.Cells[i].(string)
		var t metav1.Time
		if t.UnmarshalQueryParameter(text) == nil && !t.IsZero() {
			since[i] = t
		}
	}
	return since, nil
}
