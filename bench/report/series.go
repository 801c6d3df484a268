package report

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/larder-io/larder/bench"
)

// seriesHead are the columns of CSV. Latencies are in milliseconds.
var seriesHead = []string{"result", "round", "second", "ops", "errors", "timeouts", "refused", "p50_ms", "p99_ms"}

// CSV writes what happened in each second.
func (r *Report) CSV(w io.Writer) error {
	out := csv.NewWriter(w)
	rows := [][]string{seriesHead}
	milliseconds := func(d time.Duration) string { return strconv.FormatFloat(float64(d)/1e6, 'f', 3, 64) }
	for _, result := range r.Results {
		for i := range result.Series {
			s := &result.Series[i]
			rows = append(rows, []string{
				result.Name, strconv.Itoa(max(1, result.Round)), strconv.Itoa(i),
				strconv.Itoa(s.Ops), strconv.Itoa(s.Errors), strconv.Itoa(s.Timeouts), strconv.Itoa(s.Refused),
				milliseconds(s.Quantile(50)), milliseconds(s.Quantile(99)),
			})
		}
	}
	if err := out.WriteAll(rows); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// overTime plots the series of results.
func overTime(results []*bench.Result) []Chart {
	rate := Chart{Title: "Rate over time", X: "second", Y: "operations in the second"}
	p99 := Chart{Title: "Latency over time", X: "second", Y: "p99 of the second", Seconds: true}
	for _, r := range results {
		if len(r.Series) < 2 {
			continue
		}
		ops, late := Series{Name: title(r)}, Series{Name: title(r)}
		for i := range r.Series {
			ops.Points = append(ops.Points, Point{X: float64(i), Y: float64(r.Series[i].Ops)})
			late.Points = append(late.Points, Point{X: float64(i), Y: r.Series[i].Quantile(99).Seconds()})
		}
		rate.Series, p99.Series = append(rate.Series, ops), append(p99.Series, late)
	}
	return []Chart{rate, p99}
}
