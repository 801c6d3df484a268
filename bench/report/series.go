package report

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"time"
)

// seriesHead are the columns of CSV. Latencies are in milliseconds.
var seriesHead = []string{"result", "round", "second", "ops", "errors", "timeouts", "refused", "p50_ms", "p99_ms"}

// CSV writes the counts of each second.
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
