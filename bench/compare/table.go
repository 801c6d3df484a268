package compare

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/thresholds"
)

// Kind is one of the servers that are compared.
type Kind int

// The servers.
const (
	Stock Kind = iota
	Limit
	Larder
	kinds
)

// String names the server.
func (k Kind) String() string {
	switch k {
	case Stock:
		return "kube-apiserver"
	case Limit:
		return "limit"
	case Larder:
		return "Larder"
	}
	return fmt.Sprintf("Kind(%d)", int(k))
}

// Unit is the unit of a Figure.
type Unit string

// Units of figures.
const (
	Seconds   Unit = "s"  // of CPU
	Wall      Unit = "s " // of time
	Memory    Unit = "B"  // resident
	PerSecond Unit = "/s" // more is better
	Times     Unit = "x"  // how many times another figure
)

// Format writes a figure for people.
func (u Unit) Format(v float64) string {
	switch u {
	case Seconds, Wall:
		return bench.Duration(time.Duration(v * float64(time.Second)))
	case Memory:
		return bench.Bytes(int64(v))
	}
	if u == Times {
		return fmt.Sprintf("%.3g times", v)
	}
	return fmt.Sprintf("%.0f%s", v, u)
}

// Goal is the goal of a figure of Larder's.
type Goal struct {
	// Bound is the most it may be, 0 for none.
	Bound float64 `json:"bound,omitempty"`
	// OfStock is the part of kube-apiserver's figure that it may be at most, or, where
	// more is better, must be at least; 0 for none.
	OfStock float64 `json:"ofStock,omitempty"`
}

// Figure is one thing measured of all servers.
type Figure struct {
	// Name says what it is, "" for the server's CPU time for one operation.
	Name string `json:"name,omitempty"`
	Unit Unit   `json:"unit"`
	Goal Goal   `json:"goal"`
	// Best is each server's best, 0 where a server was not measured.
	Best [kinds]float64 `json:"best"`
}

// Met reports whether the goal, if there is one, is reached; it is not while anything
// that it needs is unknown.
func (f Figure) Met() bool {
	larder, stock := f.Best[Larder], f.Best[Stock]
	if larder <= 0 { // memory that did not grow tells nothing
		return false
	}
	if f.Goal.Bound > 0 && larder > f.Goal.Bound {
		return false
	}
	switch {
	case f.Goal.OfStock == 0:
		return true
	case stock == 0:
		return false
	case f.Unit == PerSecond:
		return larder >= f.Goal.OfStock*stock
	}
	return larder <= f.Goal.OfStock*stock
}

// goalText writes the goal.
func (f Figure) goalText() string {
	switch {
	case f.Goal.Bound > 0:
		return "≤ " + f.Unit.Format(f.Goal.Bound)
	case f.Goal.OfStock > 0 && f.Unit == PerSecond:
		return fmt.Sprintf("≥ %g of kube-apiserver", f.Goal.OfStock)
	case f.Goal.OfStock > 0:
		return fmt.Sprintf("≤ %g of kube-apiserver", f.Goal.OfStock)
	}
	return ""
}

// Ratio is how much better Larder is than kube-apiserver, 0 if unknown.
func (f Figure) Ratio() float64 {
	larder, stock := f.Best[Larder], f.Best[Stock]
	if larder <= 0 || stock <= 0 {
		return 0
	}
	if f.Unit == PerSecond {
		return larder / stock
	}
	return stock / larder
}

// Row is one line of the table.
type Row struct {
	// ID is by which others cite the row. It does not change when rows are added.
	ID string `json:"id"`
	// Work says what was done.
	Work string `json:"work"`
	// Body is the size of Larder's answer, 0 if that says nothing.
	Body    int64    `json:"bodyBytes,omitempty"`
	Figures []Figure `json:"figures"`
	// Results are all rounds of all servers.
	Results [kinds][]*bench.Result `json:"results"`
}

// Met reports whether all goals of the row are reached.
func (r *Row) Met() bool {
	for _, f := range r.Figures {
		if !f.Met() {
			return false
		}
	}
	return len(r.Figures) > 0
}

// RSS is the resident memory of a server after the row's last round.
func (r *Row) RSS(k Kind) int64 {
	if n := len(r.Results[k]); n > 0 {
		return r.Results[k][n-1].Server.RSS
	}
	return 0
}

// Errors counts the operations of a server that failed, and returns the first error.
func (r *Row) Errors(k Kind) (n int, first string) {
	for _, result := range r.Results[k] {
		n += result.Failures()
		if first == "" {
			first = result.FirstError
		}
	}
	return n, first
}

// Table is the whole comparison.
type Table struct {
	// Date is when it began, Machine and Command what made it.
	Date    time.Time `json:"date"`
	Machine string    `json:"machine"`
	Command string    `json:"command"`
	// Servers says which versions were compared, over what.
	Servers string `json:"servers"`
	// Rounds is how many turns each server had.
	Rounds int    `json:"rounds"`
	Rows   []*Row `json:"rows"`
}

// cell is one server's cell of a row.
func (r *Row) cell(k Kind) string {
	var parts []string
	for _, f := range r.Figures {
		if v := f.Best[k]; v > 0 {
			parts = append(parts, label(f, f.Unit.Format(v)))
		}
	}
	return strings.Join(parts, ", ")
}

func label(f Figure, text string) string {
	if f.Name == "" {
		return text
	}
	return text + " " + f.Name
}

func (r *Row) goals() string {
	var parts []string
	for _, f := range r.Figures {
		if text := f.goalText(); text != "" {
			parts = append(parts, label(f, text))
		}
	}
	return strings.Join(parts, ", ")
}

func (r *Row) ratio() string {
	var parts []string
	for _, f := range r.Figures {
		if v := f.Ratio(); v > 0 {
			parts = append(parts, fmt.Sprintf("%.3g", v))
		}
	}
	return strings.Join(parts, ", ")
}

func (r *Row) verdict() string {
	if len(r.Results[Larder]) == 0 || r.goals() == "" {
		return ""
	}
	if r.Met() {
		return "yes"
	}
	return "**no**"
}

// Cells are the row's texts under Heads.
func (r *Row) Cells() []string {
	body, memory := "", ""
	if r.Body > 0 {
		body = bench.Bytes(r.Body)
	}
	if stock, larder := r.RSS(Stock), r.RSS(Larder); stock+larder > 0 {
		memory = bench.Bytes(stock) + " / " + bench.Bytes(larder)
	}
	return []string{r.ID, r.Work, body, r.cell(Stock), r.cell(Limit), r.cell(Larder), r.ratio(), r.goals(), r.verdict(), memory}
}

// Heads are the table's column heads.
func Heads() []string {
	return []string{"id", "work", "body", "kube-apiserver", "limit", "Larder", "ratio", "goal", "met", "RSS, kube-apiserver / Larder"}
}

// Legend says what the figures of the table are.
func (t *Table) Legend() string {
	return fmt.Sprintf("CPU time of the server's process for one operation, the best of %d, of rows with p99.9 the median; where a row says so, also time on the clock, rates and resident memory. "+
		"The limit is a bare TLS server that sends what Larder answered, from memory. Ratios above 1 are in Larder's favour.", t.Rounds)
}

// wrap breaks a paragraph into lines.
func wrap(text string) string {
	const widest = 88
	var b strings.Builder
	column := 0
	for word := range strings.FieldsSeq(text) {
		size := len([]rune(word))
		switch {
		case column == 0:
		case column+1+size > widest:
			b.WriteByte('\n')
			column = 0
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += size
	}
	b.WriteByte('\n')
	return b.String()
}

// Markdown is the table as text to paste.
func (t *Table) Markdown() string {
	var b strings.Builder
	b.WriteString(wrap(fmt.Sprintf("%s, %s. %s", t.Date.Format(time.DateOnly), t.Machine, t.Servers)))
	fmt.Fprintf(&b, "\n    %s\n\n", t.Command)
	b.WriteString(wrap(t.Legend()) + "\n")
	b.WriteString(bench.MarkdownHead(Heads()...))
	for _, r := range t.Rows {
		b.WriteString(bench.MarkdownRow(r.Cells()...))
	}
	if t.Rounds > 1 {
		b.WriteString("\nEach round:\n\n" + bench.MarkdownHead("id", "server", "p50", "p99", "operations/s", "server CPU per operation"))
	}
	for _, r := range t.Rows {
		for _, cells := range r.spreads() {
			b.WriteString(bench.MarkdownRow(cells...))
		}
	}
	for _, r := range t.Rows {
		for k := range kinds {
			if n, first := r.Errors(k); n > 0 {
				fmt.Fprintf(&b, "\n%s: %s had %d errors, the first: %s\n", r.ID, k, n, first)
			}
		}
	}
	return b.String()
}

// EachRound are the results of all rounds, named by row and server.
func (t *Table) EachRound() []*bench.Result {
	var all []*bench.Result
	for _, r := range t.Rows {
		for k := range kinds {
			for i, result := range r.Results[k] {
				named := *result
				named.Name, named.Round = r.ID+" "+k.String(), i+1
				all = append(all, &named)
			}
		}
	}
	return all
}

// Larder are Larder's results, each of all rounds of a row, by which it is named.
func (t *Table) Larder() []*bench.Result {
	var all []*bench.Result
	for _, r := range t.Rows {
		if merged := bench.Merge(r.Results[Larder]...); merged != nil {
			merged.Name = r.ID
			all = append(all, merged)
		}
	}
	return all
}

// spreads are lines of a table of how far the rounds of a row are apart, by server.
func (r *Row) spreads() [][]string {
	var lines [][]string
	for k := range kinds {
		if len(r.Results[k]) < 2 {
			continue
		}
		line := []string{r.ID, k.String()}
		for _, s := range bench.Spreads(r.Results[k]) {
			line = append(line, s.Text)
		}
		lines = append(lines, line)
	}
	return lines
}

// Missed returns an error that names the rows that do not meet their goals, nil if none.
func (t *Table) Missed() error {
	var ids []string
	for _, r := range t.Rows {
		if r.verdict() != "" && !r.Met() {
			ids = append(ids, r.ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	return fmt.Errorf("%w: goals missed: %s", thresholds.ErrThreshold, strings.Join(ids, ", "))
}

// MarshalJSON implements json.Marshaler: servers by name instead of by number.
func (r *Row) MarshalJSON() ([]byte, error) {
	type plain Row
	results := make(map[string][]*bench.Result)
	for k := range kinds {
		if len(r.Results[k]) > 0 {
			results[k.String()] = r.Results[k]
		}
	}
	return json.Marshal(struct {
		*plain
		Met     bool                       `json:"met"`
		Results map[string][]*bench.Result `json:"results"`
	}{(*plain)(r), r.Met(), results})
}

// UnmarshalJSON implements json.Unmarshaler: it reads what MarshalJSON writes.
func (r *Row) UnmarshalJSON(text []byte) error {
	type plain Row
	in := struct {
		*plain
		Results map[string][]*bench.Result `json:"results"`
	}{plain: (*plain)(r)}
	if err := json.Unmarshal(text, &in); err != nil {
		return err
	}
	for k := range kinds {
		r.Results[k] = in.Results[k.String()]
	}
	return nil
}
