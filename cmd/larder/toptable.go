package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/larder-io/larder/httpapi/costs"
)

// topTable formats d as lines of at most width characters; 0 sets no limit. It replaces characters that could control
// a terminal.
func topTable(d *costs.Report, width int) []string {
	seconds := max(d.To.Sub(d.From).Seconds(), 1e-9)
	lines := []string{clip(summaryLine(d, seconds), width), ""}
	rows := [][]string{topHead(d)}
	for i := range d.Rows {
		rows = append(rows, topRow(d, &d.Rows[i], seconds))
	}
	return append(lines, align(rows, width, len(nameColumns(d.By)))...)
}

// windowText describes the time window of d in words.
func windowText(d *costs.Report) string {
	length := d.To.Sub(d.From).Round(time.Second)
	if d.Window == costs.SinceStart.String() {
		return fmt.Sprintf("since the start %v ago", length)
	}
	return fmt.Sprintf("the last %v", length)
}

func summaryLine(d *costs.Report, seconds float64) string {
	return fmt.Sprintf("%s by %s: CPU %s, %s of it for clients; %s requests/s, %s/s, %s events/s; %d names",
		windowText(d), d.By, percent(d.Process.CPUSeconds, seconds), percent(d.Total.Time().Seconds(), seconds),
		rate(d.Total[costs.Requests], seconds), bytesText(float64(d.Total[costs.Bytes])/seconds), rate(d.Total[costs.Events], seconds), d.Names)
}

// nameColumns returns the columns that name a client.
func nameColumns(by string) []string {
	if by == costs.ByClient.String() {
		return []string{"USER", "AGENT", "VERB", "RESOURCE"}
	}
	return []string{strings.ToUpper(by)}
}

// topHead returns the first row. It marks the column by which rows are sorted.
func topHead(d *costs.Report) []string {
	columns := []string{"CPU", "BYTES/S", "REQ/S", "EVENTS/S"}
	if d.Window == costs.SinceStart.String() {
		columns = []string{"CPU s", "BYTES", "REQ", "EVENTS"}
	}
	for k := range columns {
		if costs.Kind(k).String() == d.Sort {
			columns[k] += "*"
		}
	}
	return append(append(columns, "MISSED"), nameColumns(d.By)...)
}

func topRow(d *costs.Report, row *costs.Row, seconds float64) []string {
	used := row.Used
	cells := []string{percent(used.Time().Seconds(), seconds), bytesText(float64(used[costs.Bytes]) / seconds), rate(used[costs.Requests], seconds), rate(used[costs.Events], seconds)}
	if d.Window == costs.SinceStart.String() {
		cells = []string{fmt.Sprintf("%.2f", used.Time().Seconds()), bytesText(float64(used[costs.Bytes])), fmt.Sprint(used[costs.Requests]), fmt.Sprint(used[costs.Events])}
	}
	cells = append(cells, missedText(d, row))
	for _, name := range nameColumns(d.By) {
		value := map[string]string{"USER": row.User, "AGENT": row.UserAgent, "VERB": row.Verb, "RESOURCE": row.Resource}[name]
		cells = append(cells, cmp.Or(printable(value), "-"))
	}
	return cells
}

// missedText returns the amount that may be missing from a row, in the unit by which rows are sorted.
func missedText(d *costs.Report, row *costs.Row) string {
	kind := costs.CPU
	for k := range row.Used {
		if costs.Kind(k).String() == d.Sort {
			kind = costs.Kind(k)
		}
	}
	used, missed := row.Used[kind], row.Missed[kind]
	switch {
	case missed == 0:
		return "0"
	case used == 0:
		return "all"
	}
	return fmt.Sprintf("<=%.0f%%", 100*float64(missed)/float64(used)+0.5)
}

// percent returns CPU time in percent of one processor.
func percent(cpu, seconds float64) string {
	return fmt.Sprintf("%.1f%%", 100*cpu/seconds)
}

func rate(n int64, seconds float64) string {
	return fmt.Sprintf("%.1f", float64(n)/seconds)
}

// bytesText formats a number of bytes in at most six characters.
func bytesText(n float64) string {
	units := []string{"B", "kB", "MB", "GB", "TB"}
	for n >= 1000 && len(units) > 1 {
		n, units = n/1000, units[1:]
	}
	if units[0] == "B" || n >= 100 {
		return fmt.Sprintf("%.0f%s", n, units[0])
	}
	return fmt.Sprintf("%.1f%s", n, units[0])
}

// printable replaces unprintable characters, including those that control a terminal or change the direction of text.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// align aligns cells in columns: the last names columns to the left, the others to the right. If width is too small, it
// shortens the widest names.
func align(rows [][]string, width, names int) []string {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	total := 2 * (len(widths) - 1)
	for _, w := range widths {
		total += w
	}
	first := len(widths) - names
	for width > 0 && total > width {
		widest := first + slices.Index(widths[first:], slices.Max(widths[first:]))
		if widths[widest] <= 4 {
			break
		}
		widths[widest]--
		total--
	}
	lines := make([]string, 0, len(rows))
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			if i > 0 {
				line.WriteString("  ")
			}
			cell = clip(cell, widths[i])
			gap := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i < first {
				line.WriteString(gap + cell)
			} else {
				line.WriteString(cell + gap)
			}
		}
		lines = append(lines, clip(strings.TrimRight(line.String(), " "), width))
	}
	return lines
}

// clip shortens s to width characters; 0 sets no limit.
func clip(s string, width int) string {
	if width <= 0 || utf8.RuneCountInString(s) <= width {
		return s
	}
	return string([]rune(s)[:width-1]) + "…"
}
