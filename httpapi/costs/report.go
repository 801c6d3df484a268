package costs

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
)

// Path is the HTTP path of a [Ledger].
const Path = "/larder/costs"

// Window is the time that a [Report] covers.
type Window uint8

// The windows. Each begins with one of the periods that the ledger keeps. The report says when.
const (
	LastMinute Window = iota // and up to ten seconds more
	LastFive                 // the last five minutes, and up to one more
	SinceStart               // all the time since the ledger was made
	lastWindow
)

// String returns the name of the window in requests.
func (w Window) String() string { return windowNames[w] }

var windowNames = [lastWindow]string{"1m", "5m", "start"}

// Query selects and orders the rows of a [Report].
type Query struct {
	Window Window
	By     Dimension
	Sort   Kind // the kind of cost by which rows are sorted, the highest first
	Limit  int  // the largest number of rows; 0 sets no limit
}

// usualLimit is the default limit of rows.
const usualLimit = 20

// ParseQuery parses the parameters of a request: window (1m, 5m, start), by (client, user, agent, resource,
// verb), sort (cpu, bytes, requests, events) and limit. The first value of each is the default; 0 sets no
// limit.
func ParseQuery(get func(name string) string) (q Query, err error) {
	choose := func(name string, names []string) int {
		value := get(name)
		if value == "" {
			return 0
		}
		at := slices.Index(names, value)
		if at < 0 && err == nil {
			err = fmt.Errorf("costs: %s must be one of %q, not %q", name, names, value)
		}
		return max(at, 0)
	}
	q.Window = Window(choose("window", windowNames[:]))
	q.By = Dimension(choose("by", dimensionNames[:]))
	q.Sort = Kind(choose("sort", kindNames[:]))
	q.Limit = usualLimit
	if value := get("limit"); value != "" {
		n, convErr := strconv.Atoi(value)
		if (convErr != nil || n < 0) && err == nil {
			err = fmt.Errorf("costs: limit must be a number of rows, not %q", value)
		}
		q.Limit = n
	}
	return q, err
}

// Report has the costs of all clients in a window, and the query that selected them.
type Report struct {
	Window  string    `json:"window"`
	By      string    `json:"by"`
	Sort    string    `json:"sort"`
	From    time.Time `json:"from"`
	To      time.Time `json:"to"`
	Process struct {
		CPUSeconds float64 `json:"cpuSeconds"`
	} `json:"process"` // of the whole process
	Total Usage `json:"total"` // of all clients; exact
	// Missed is the maximum that a name without a row has cost, unless Query.Limit has cut off its row.
	Missed Usage `json:"missed"`
	Names  int   `json:"names"` // includes names that Limit left out
	Rows   []Row `json:"rows"`
}

// Row has the costs of one name: between Used and Used plus Missed.
type Row struct {
	Key
	Used   Usage `json:"used"`
	Missed Usage `json:"missed"`
}

// Report returns the costs up to now that q selects.
func (l *Ledger) Report(q Query) *Report {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.sweepLocked(now, false)
	periods := []*period{l.all}
	switch q.Window {
	case LastMinute:
		periods = l.short.periods()
	case LastFive:
		periods = l.long.periods()
	}
	var together summary
	var process time.Duration
	for _, p := range periods {
		together.merge(&p.by[q.By])
		process += p.process
	}
	r := &Report{
		Window: q.Window.String(), By: q.By.String(), Sort: q.Sort.String(), From: periods[0].from.UTC(), To: now.UTC(),
		Total: together.total, Missed: together.missed, Names: len(together.rows), Rows: make([]Row, 0, len(together.rows)),
	}
	r.Process.CPUSeconds = process.Seconds()
	for key, e := range together.rows {
		r.Rows = append(r.Rows, Row{Key: key.Value(), Used: e.seen, Missed: e.missed})
	}
	slices.SortFunc(r.Rows, func(a, b Row) int {
		return cmp.Or(-cmp.Compare(a.Used[q.Sort], b.Used[q.Sort]), cmp.Compare(a.User, b.User), cmp.Compare(a.UserAgent, b.UserAgent),
			cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Verb, b.Verb))
	})
	if q.Limit > 0 && len(r.Rows) > q.Limit {
		r.Rows = r.Rows[:q.Limit:q.Limit]
	}
	return r
}

// ServeHTTP responds with a [Report], or with a Status.
func (l *Ledger) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	q, err := ParseQuery(req.URL.Query().Get)
	switch {
	case req.Method != http.MethodGet && req.Method != http.MethodHead:
		Fail(w, apierrors.NewMethodNotSupported(schema.GroupResource{Group: "larder", Resource: "costs"}, strings.ToLower(req.Method)))
	case err != nil:
		Fail(w, apierrors.NewBadRequest(err.Error()))
	default:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(l.Report(q)) // an error: the client has left
	}
}

// Fail responds with the Status of err, in JSON.
func Fail(w http.ResponseWriter, err error) {
	status := responsewriters.ErrorToAPIStatus(err)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(status.Code))
	_ = json.NewEncoder(w).Encode(status) // an error: the client has left
}
