package report

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
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

// Size of a plot in its own units, and the margins that hold the axes' texts.
const (
	width, height            = 720.0, 320.0
	left, right, top, bottom = 80.0, 20.0, 16.0, 48.0
)

// axis maps values to places on a logarithmic scale: what is compared differs by
// orders of magnitude.
type axis struct{ from, to, begin, end float64 }

// newAxis spans the values, rounded outwards to powers of ten when they are far apart.
func newAxis(values []float64, begin, end float64) axis {
	low, high := slices.Min(values), slices.Max(values)
	return axis{from: math.Pow(10, math.Floor(math.Log10(low))), to: math.Pow(10, math.Ceil(math.Log10(high*1.0001))), begin: begin, end: end}
}

func (a axis) place(v float64) float64 {
	return a.begin + (a.end-a.begin)*math.Log(v/a.from)/math.Log(a.to/a.from)
}

// ticks are the powers of ten on the axis.
func (a axis) ticks() []float64 {
	var all []float64
	for v := a.from; v <= a.to*1.0001; v *= 10 {
		all = append(all, v)
	}
	return all
}

// svg is a plot being drawn. Its texts are escaped where they are put in.
type svg struct{ strings.Builder }

func (s *svg) printf(format string, args ...any) { fmt.Fprintf(&s.Builder, format, args...) }

func (s *svg) open(title string, w, h float64) {
	s.printf(`<svg viewBox="0 0 %g %g" role="img" aria-label="%s">`, w, h, escape(title))
}

func (s *svg) text(x, y float64, anchor, class, text string) {
	s.printf(`<text x="%.1f" y="%.1f" text-anchor="%s" class="%s">%s</text>`, x, y, anchor, class, escape(text))
}

func (s *svg) line(x1, y1, x2, y2 float64, class string) {
	s.printf(`<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="%s"/>`, x1, y1, x2, y2, class)
}

// SVG draws the chart, both axes logarithmic; "" when there is nothing to draw.
func (c *Chart) SVG() string {
	var xs, ys []float64
	for _, series := range c.Series {
		for _, p := range series.Points {
			if p.X > 0 && p.Y > 0 {
				xs, ys = append(xs, p.X), append(ys, p.Y)
			}
		}
	}
	if len(xs) == 0 {
		return ""
	}
	x, y := newAxis(xs, left, width-right), newAxis(ys, height-bottom, top)
	s := &svg{}
	s.open(c.Title, width, height)
	c.frame(s, x, y)
	for i, series := range c.Series {
		s.series(series, x, y, i)
	}
	s.WriteString("</svg>")
	return s.String()
}

// frame draws grid and axes.
func (c *Chart) frame(s *svg, x, y axis) {
	for _, v := range y.ticks() {
		s.line(left, y.place(v), width-right, y.place(v), "grid")
		s.text(left-8, y.place(v)+4, "end", "tick", c.format(v))
	}
	for _, v := range x.ticks() {
		s.line(x.place(v), top, x.place(v), height-bottom, "grid")
		s.text(x.place(v), height-bottom+18, "middle", "tick", fmt.Sprintf("%g", v))
	}
	s.text((left+width-right)/2, height-8, "middle", "label", c.X)
}

// series draws one line with its points.
func (s *svg) series(line Series, x, y axis, color int) {
	points := slices.Clone(line.Points)
	points = slices.DeleteFunc(points, func(p Point) bool { return p.X <= 0 || p.Y <= 0 })
	slices.SortFunc(points, func(a, b Point) int { return cmp.Compare(a.X, b.X) })
	s.printf(`<polyline class="line c%d" points="`, color%colors)
	for _, p := range points {
		s.printf("%.1f,%.1f ", x.place(p.X), y.place(p.Y))
	}
	s.WriteString(`"/>`)
	const mostDots = 30
	if len(points) > mostDots {
		return
	}
	for _, p := range points {
		s.printf(`<circle class="dot c%d" cx="%.1f" cy="%.1f" r="3"><title>%s</title></circle>`, color%colors, x.place(p.X), y.place(p.Y),
			escape(fmt.Sprintf("%s: %.4g, %.4g", line.Name, p.X, p.Y)))
	}
}

// colors is how many colours the style knows.
const colors = 6
