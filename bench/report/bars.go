package report

import (
	"github.com/larder-io/larder/bench/compare"
)

// Sizes of the bars, in the plot's own units.
const (
	barHeight, barGap = 10.0, 3.0
	barsWidth         = 900.0
	barsLeft          = 330.0
	barsRight         = 90.0
)

// bars draws the first figure of each row, a bar for each server. It draws only rows in
// which that figure is a time, on one scale; the others are in the table alone.
func bars(t *compare.Table) string {
	var values []float64
	var rows []*compare.Row
	for _, r := range t.Rows {
		if len(r.Figures) == 0 || (r.Figures[0].Unit != compare.Seconds && r.Figures[0].Unit != compare.Wall) {
			continue
		}
		rows = append(rows, r)
		for _, v := range r.Figures[0].Best {
			if v > 0 {
				values = append(values, v)
			}
		}
	}
	if len(values) == 0 {
		return ""
	}
	const block = 3*(barHeight+barGap) + 12
	h := block*float64(len(rows)) + bottom
	x := newAxis(values, barsLeft, barsWidth-barsRight)
	s := &svg{}
	s.open("server CPU by row", barsWidth, h)
	for _, v := range x.ticks() {
		s.line(x.place(v), 0, x.place(v), h-bottom, "grid")
		s.text(x.place(v), h-bottom+16, "middle", "tick", compare.Seconds.Format(v))
	}
	for i, r := range rows {
		s.row(r, x, block*float64(i))
	}
	s.WriteString("</svg>")
	return s.String()
}

// row draws the bars of one row from y downwards.
func (s *svg) row(r *compare.Row, x axis, y float64) {
	const longest = 56
	name := []rune(r.ID + " " + r.Work)
	if len(name) > longest {
		name = append(name[:longest], '…')
	}
	s.text(barsLeft-8, y+1.5*(barHeight+barGap)+4, "end", "", string(name))
	f := r.Figures[0]
	for k, v := range f.Best {
		if v <= 0 {
			continue
		}
		top := y + float64(k)*(barHeight+barGap)
		s.printf(`<rect class="bar c%d" x="%.1f" y="%.1f" width="%.1f" height="%g"/>`, k, barsLeft, top, max(1, x.place(v)-barsLeft), barHeight)
		s.text(x.place(v)+5, top+barHeight-1, "start", "tick", f.Unit.Format(v))
	}
	goal := f.Goal.Bound
	if f.Goal.OfStock > 0 {
		goal = f.Goal.OfStock * f.Best[compare.Stock]
	}
	if goal >= x.from && goal <= x.to {
		s.line(x.place(goal), y-2, x.place(goal), y+3*(barHeight+barGap), "goal")
	}
}
