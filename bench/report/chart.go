package report

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/larder-io/larder/bench"
)

// format writes a value of the Y axis.
func (c *Chart) format(v float64) string {
	if c.Seconds {
		return bench.Duration(time.Duration(v * float64(time.Second)))
	}
	return fmt.Sprintf("%.4g", v)
}

// text writes the chart as a table: a row for each X, a column for each series.
func (c *Chart) text(w io.Writer) error {
	fmt.Fprintf(w, "\n%s (%s)\n", c.Title, c.Y)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(tw, c.X, "\t")
	var xs []float64
	for _, s := range c.Series {
		fmt.Fprint(tw, s.Name, "\t")
		for _, p := range s.Points {
			xs = append(xs, p.X)
		}
	}
	fmt.Fprintln(tw)
	slices.Sort(xs)
	for _, x := range slices.Compact(xs) {
		fmt.Fprintf(tw, "%g\t", x)
		for _, s := range c.Series {
			at := slices.IndexFunc(s.Points, func(p Point) bool { return p.X == x })
			if at < 0 {
				fmt.Fprint(tw, "\t")
				continue
			}
			fmt.Fprint(tw, c.format(s.Points[at].Y), "\t")
		}
		fmt.Fprintln(tw)
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}
