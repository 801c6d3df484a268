package table

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

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
