package table

import "github.com/larder-io/larder/cache"

// RowCached reports whether the row of o can be cached.
func (p *Printer) RowCached(o *cache.Object) (bool, error) {
	row, err := p.row(o)
	return err == nil && row[0]&rowVolatile == 0, err
}
