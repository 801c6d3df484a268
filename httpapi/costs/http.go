package costs

import (
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

// Path is where a [Ledger] is asked over HTTP.
const Path = "/larder/costs"

// The names by which clients ask.
var (
	windowNames    = [lastWindow]string{"1m", "5m", "start"}
	dimensionNames = [dimensions]string{"client", "user", "agent", "resource", "verb"}
	kindNames      = [kinds]string{"cpu", "bytes", "requests", "events"}
)

// String is what clients call the window.
func (w Window) String() string { return windowNames[w] }

// String is what clients call the dimension.
func (d Dimension) String() string { return dimensionNames[d] }

// String is what clients call the kind.
func (k Kind) String() string { return kindNames[k] }

// usualLimit is how many rows an answer has, if the client does not say.
const usualLimit = 20

// ParseQuery reads what a client asks for: window (1m, 5m, start), by (client, user, agent,
// resource, verb), sort (cpu, bytes, requests, events) and limit. The first of each is the
// default; 0 sets no limit.
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

// Document is a [Report] as clients get it, and the query that it answers.
type Document struct {
	Window string    `json:"window"`
	By     string    `json:"by"`
	Sort   string    `json:"sort"`
	From   time.Time `json:"from"`
	To     time.Time `json:"to"`
	// Process is the whole process's.
	Process struct {
		CPUSeconds float64 `json:"cpuSeconds"`
	} `json:"process"`
	Total  Amount     `json:"total"`
	Missed Amount     `json:"missed"`
	Names  int        `json:"names"`
	Rows   []NamedRow `json:"rows"`
}

// Amount is a [Usage] as clients get it.
type Amount struct {
	CPUSeconds float64 `json:"cpuSeconds"`
	Bytes      int64   `json:"bytes"`
	Requests   int64   `json:"requests"`
	Events     int64   `json:"events"`
}

// NamedRow is a [Row] as clients get it.
type NamedRow struct {
	User      string `json:"user,omitempty"`
	UserAgent string `json:"userAgent,omitempty"`
	Resource  string `json:"resource,omitempty"`
	Verb      string `json:"verb,omitempty"`
	Used      Amount `json:"used"`
	Missed    Amount `json:"missed"`
}

func amountOf(u *Usage) Amount {
	return Amount{CPUSeconds: u.Time().Seconds(), Bytes: u[Bytes], Requests: u[Requests], Events: u[Events]}
}

// Document answers q as clients get it.
func (l *Ledger) Document(q Query) *Document {
	r := l.Report(q)
	d := &Document{
		Window: q.Window.String(), By: q.By.String(), Sort: q.Sort.String(), From: r.From.UTC(), To: r.To.UTC(),
		Total: amountOf(&r.Total), Missed: amountOf(&r.Missed), Names: r.Names, Rows: make([]NamedRow, 0, len(r.Rows)),
	}
	d.Process.CPUSeconds = r.Process.Seconds()
	for i := range r.Rows {
		row := &r.Rows[i]
		d.Rows = append(d.Rows, NamedRow{
			User: row.User, UserAgent: row.UserAgent, Resource: row.Resource, Verb: row.Verb,
			Used: amountOf(&row.Used), Missed: amountOf(&row.Missed),
		})
	}
	return d
}

// ServeHTTP answers with a [Document], or with a Status.
func (l *Ledger) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	var body any
	q, err := ParseQuery(req.URL.Query().Get)
	switch {
	case req.Method != http.MethodGet && req.Method != http.MethodHead:
		err = apierrors.NewMethodNotSupported(schema.GroupResource{Group: "larder", Resource: "costs"}, strings.ToLower(req.Method))
	case err != nil:
		err = apierrors.NewBadRequest(err.Error())
	default:
		body, err = l.Document(q), nil
	}
	code := http.StatusOK
	if err != nil {
		status := responsewriters.ErrorToAPIStatus(err)
		code, body = int(status.Code), status
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the client has left, who else would be told
}
