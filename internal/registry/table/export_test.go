package table

import (
	"reflect"
	"time"

	"github.com/larder-io/larder/cache"
)

// Times finds the times in obj, and says whether these are all.
func Times(obj any) ([]*time.Time, bool) {
	return newTimeFinder(obj).find(reflect.ValueOf(obj), nil)
}

// RowKept reports whether the row of o can be kept.
func (p *Printer) RowKept(o *cache.Object) (bool, error) {
	row, err := p.row(o)
	return err == nil && row[0]&rowVolatile == 0, err
}
