package table

import "github.com/larder-io/larder/cache"

// RowKept reports whether the row of o can be kept.
func (p *Printer) RowKept(o *cache.Object) (bool, error) {
	row, err := p.row(o)
	return err == nil && row[0]&rowVolatile == 0, err
}
