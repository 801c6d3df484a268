package report

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/compare"
)

// Report is all that one run of a program found.
type Report struct {
	// Title heads the report. Command, Machine and Date say how it came about.
	Title   string    `json:"title"`
	Command string    `json:"command"`
	Machine string    `json:"machine"`
	Date    time.Time `json:"date"`
	// Results are those of single workloads.
	Results []*bench.Result `json:"results,omitempty"`
	// Table is a comparison, nil for none.
	Table *compare.Table `json:"table,omitempty"`
	// Charts plot how figures grow.
	Charts []Chart `json:"charts,omitempty"`
}

// Chart plots series of points.
type Chart struct {
	Title string `json:"title"`
	// X and Y name the axes.
	X string `json:"x"`
	Y string `json:"y"`
	// Seconds says that Y is a time in seconds, else it is a number.
	Seconds bool     `json:"seconds,omitempty"`
	Series  []Series `json:"series"`
}

// Series is one line of a Chart.
type Series struct {
	Name   string  `json:"name"`
	Points []Point `json:"points"`
}

// Point is one measurement of a Series.
type Point struct {
	X float64 `json:"x"`
	Y float64 `json:"y"`
}

// JSON writes the report for programs.
func (r *Report) JSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(r); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// Text writes the report for people.
func (r *Report) Text(w io.Writer) error {
	if r.Table != nil {
		if _, err := io.WriteString(w, r.Table.Markdown()); err != nil {
			return fmt.Errorf("report: %w", err)
		}
	}
	if len(r.Results) > 0 {
		if err := bench.WriteText(w, r.Results...); err != nil {
			return err
		}
	}
	for _, c := range r.Charts {
		if err := c.text(w); err != nil {
			return err
		}
	}
	return nil
}
