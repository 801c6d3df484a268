package cluster

import (
	"fmt"
	"strings"
	"time"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/testservers"
)

// Part is one part of a simulation.
type Part struct {
	Cost Cost `json:"cost"`
	// Kinds are the requests that were due in it, by kind.
	Kinds []*bench.Result `json:"kinds"`
}

// failures counts requests that failed, and returns the first failure.
func (p *Part) failures() (n int, first string) {
	for _, k := range p.Kinds {
		n += k.Failures()
		if first == "" {
			first = k.FirstError
		}
	}
	return n, first
}

// ops counts requests, without deliveries to kubelets.
func (p *Part) ops() int {
	n := 0
	for _, k := range p.Kinds {
		if k.Name != delivery.String() {
			n += k.Ops
		}
	}
	return n
}

// Result is the cost of one simulation at one server.
type Result struct {
	// Server is Stock or Larder, Nodes the number of nodes, Protocol HTTP2 or HTTP1, Round
	// counts from 1.
	Server   string `json:"server"`
	Nodes    int    `json:"nodes"`
	Protocol string `json:"protocol"`
	Round    int    `json:"round"`
	// Watches is how many watches there were when all were open, EventsPerSecond what came of
	// them in the steady part.
	Watches         int     `json:"watches"`
	EventsPerSecond float64 `json:"eventsPerSecond"`
	// Open is the part in which all components connect, Steady the load from day to day,
	// Restart that from the signal that ends the server until all informers are back.
	Open    Part `json:"open"`
	Steady  Part `json:"steady"`
	Restart Part `json:"restart"`
	// Down is from that signal until the server had ended, Ready until the next one was ready.
	Down  time.Duration `json:"downNanoseconds"`
	Ready time.Duration `json:"readyNanoseconds"`
	// Expired counts informers whose version the new server did not know: they listed again.
	// Received is the size of what watches sent in the Restart.
	Expired  int64 `json:"expired"`
	Received int64 `json:"receivedBytes"`
	// Differing counts informers whose contents were wrong at the end.
	Differing      int    `json:"differing"`
	FirstDiffering string `json:"firstDiffering,omitempty"`
	// Failure is why the simulation ended early, "" if it did not. What was measured until
	// then stands.
	Failure string `json:"failure,omitempty"`
}

// protocol is the name of the protocol for people.
func (r *Result) protocol() string {
	if r.Protocol == HTTP1 {
		return "HTTP/1.1"
	}
	return "HTTP/2"
}

// summary is the simulation in one line.
func (r *Result) summary() string {
	failed, first := r.Steady.failures()
	text := fmt.Sprintf("%d watches, %.0f requests/s; CPU a minute: server %s, etcd %s, client %s; PSS %s; restart: all back after %s, %d failed requests",
		r.Watches, float64(r.Steady.ops())/r.Steady.Cost.Wall.Seconds(), bench.Duration(r.Steady.Cost.perMinute(r.Steady.Cost.Server)),
		bench.Duration(r.Steady.Cost.perMinute(r.Steady.Cost.Etcd)), bench.Duration(r.Steady.Cost.perMinute(r.Steady.Cost.Client)), bench.Bytes(r.Steady.Cost.PSS),
		bench.Duration(r.Restart.Cost.Wall), r.restartFailures())
	if failed > 0 {
		text += fmt.Sprintf("; %d requests failed before it, the first: %s", failed, first)
	}
	if r.Differing > 0 {
		text += fmt.Sprintf("; %d informers differ at the end, the first: %s", r.Differing, r.FirstDiffering)
	}
	return text
}

func (r *Result) restartFailures() int {
	n, _ := r.Restart.failures()
	return n
}

// restartRefusals counts the failures that the server answered with 429; most others could not
// connect.
func (r *Result) restartRefusals() int {
	n := 0
	for _, k := range r.Restart.Kinds {
		n += k.Refused
	}
	return n
}

// Table is the result of all simulations.
type Table struct {
	testservers.Head
	// Results are all simulations, in the order in which they ran.
	Results []*Result `json:"results"`

	failed []error
}

// setup is a number of nodes and a protocol, with the simulations of both servers.
type setup struct {
	id, title string
	of        map[string][]*Result // by server
	any       *Result
}

// setups groups the simulations.
func (t *Table) setups() []*setup {
	var all []*setup
	for _, r := range t.Results {
		title := fmt.Sprintf("%d nodes, %s", r.Nodes, r.protocol())
		if len(all) == 0 || all[len(all)-1].title != title {
			all = append(all, &setup{id: fmt.Sprintf("N%d", len(all)+1), title: title, of: make(map[string][]*Result), any: r})
		}
		s := all[len(all)-1]
		s.of[r.Server] = append(s.of[r.Server], r)
	}
	return all
}

// mean is the mean of a figure over the rounds at a server that came to a part; ok is false
// without any.
func (s *setup) mean(server string, part func(*Result) *Part, figure func(*Result) float64) (v float64, ok bool) {
	n := 0
	for _, r := range s.of[server] {
		if part(r).Cost.Wall > 0 {
			v += figure(r)
			n++
		}
	}
	return v / float64(max(n, 1)), n > 0
}

// The parts.
func steadyPart(r *Result) *Part  { return &r.Steady }
func restartPart(r *Result) *Part { return &r.Restart }

// pair formats a figure of both servers, and their ratio.
func (s *setup) pair(part func(*Result) *Part, figure func(*Result) float64, format func(float64) string) (pair, ratio string) {
	stock, had := s.mean(testservers.Stock, part, figure)
	larder, has := s.mean(testservers.Larder, part, figure)
	show := func(v float64, ok bool) string {
		if !ok {
			return "–"
		}
		return format(v)
	}
	pair = show(stock, had) + " / " + show(larder, has)
	if had && has && larder > 0 {
		ratio = fmt.Sprintf("%.3g", stock/larder)
	}
	return pair, ratio
}

// Formats of figures.
func asTime(v float64) string  { return bench.Duration(time.Duration(v)) }
func asBytes(v float64) string { return bench.Bytes(int64(v)) }
func asCount(v float64) string { return fmt.Sprintf("%.0f", v) }

// column is one column of a table of figures of both servers.
type column struct {
	head   string
	figure func(*Result) float64
	format func(float64) string
	ratio  bool
}

func steadyColumns() []column {
	minute := func(of func(*Cost) time.Duration) func(*Result) float64 {
		return func(r *Result) float64 { return float64(r.Steady.Cost.perMinute(of(&r.Steady.Cost))) }
	}
	return []column{
		{"CPU of the server a minute", minute(func(c *Cost) time.Duration { return c.Server }), asTime, true},
		{"of etcd", minute(func(c *Cost) time.Duration { return c.Etcd }), asTime, false},
		{"of the components played", minute(func(c *Cost) time.Duration { return c.Client }), asTime, false},
		{"resident (PSS)", func(r *Result) float64 { return float64(r.Steady.Cost.PSS) }, asBytes, true},
		{"at most (RSS)", func(r *Result) float64 { return float64(r.Steady.Cost.Usage.PeakRSS) }, asBytes, false},
		{"connecting all: CPU of the server", func(r *Result) float64 { return float64(r.Open.Cost.Server) }, asTime, true},
	}
}

func restartColumns() []column {
	return []column{
		{"all informers back after", func(r *Result) float64 { return float64(r.Restart.Cost.Wall) }, asTime, true},
		{"ended after", func(r *Result) float64 { return float64(r.Down) }, asTime, false},
		{"ready after", func(r *Result) float64 { return float64(r.Ready) }, asTime, false},
		{"CPU of the server", func(r *Result) float64 { return float64(r.Restart.Cost.Server) }, asTime, true},
		{"of etcd", func(r *Result) float64 { return float64(r.Restart.Cost.Etcd) }, asTime, false},
		{"ranges of etcd", func(r *Result) float64 { return r.Restart.Cost.Ranges }, asCount, false},
		{"sent by etcd", func(r *Result) float64 { return r.Restart.Cost.Sent }, asBytes, false},
		{"informers that began anew", func(r *Result) float64 { return float64(r.Expired) }, asCount, false},
		{"sent to watches", func(r *Result) float64 { return float64(r.Received) }, asBytes, false},
		{"requests failed", func(r *Result) float64 { return float64(r.restartFailures()) }, asCount, false},
		{"of them answered 429", func(r *Result) float64 { return float64(r.restartRefusals()) }, asCount, false},
		{"resident at most (RSS)", func(r *Result) float64 { return float64(r.Restart.Cost.Usage.PeakRSS) }, asBytes, true},
	}
}

// figures writes a table whose rows are figures and whose columns are setups.
func figures(b *strings.Builder, setups []*setup, part func(*Result) *Part, columns []column) {
	heads := []string{"kube-apiserver / Larder, ratio"}
	for _, s := range setups {
		heads = append(heads, s.id+": "+s.title)
	}
	b.WriteString(bench.MarkdownHead(heads...))
	for _, c := range columns {
		cells := []string{c.head}
		for _, s := range setups {
			pair, ratio := s.pair(part, c.figure, c.format)
			if c.ratio && ratio != "" {
				pair += ", **" + ratio + "**"
			}
			cells = append(cells, pair)
		}
		b.WriteString(bench.MarkdownRow(cells...))
	}
}

// latencies writes a table of the kinds of requests of a part.
func latencies(b *strings.Builder, setups []*setup, part func(*Result) *Part) {
	b.WriteString("| id | request | a second | kube-apiserver: p50, p99, p99.9 | Larder: p50, p99, p99.9 | failed |\n|---|---|---|---|---|---|\n")
	for _, s := range setups {
		for k := range requestKinds {
			merged := make(map[string]*bench.Result)
			wall := time.Duration(0)
			rate, failed := 0.0, []string{}
			for _, server := range []string{testservers.Stock, testservers.Larder} {
				var all []*bench.Result
				for _, r := range s.of[server] {
					for _, kind := range part(r).Kinds {
						if kind.Name == k.String() {
							all = append(all, kind)
						}
					}
					wall = max(wall, part(r).Cost.Wall)
				}
				m := bench.Merge(all...)
				merged[server] = m
				failures := "–"
				if m != nil {
					failures = fmt.Sprint(m.Failures())
					rate = float64(m.Ops) / wall.Seconds() / float64(len(all))
				}
				failed = append(failed, failures)
			}
			if merged[testservers.Stock] == nil && merged[testservers.Larder] == nil {
				continue
			}
			fmt.Fprintf(b, "| %s | %s | %.3g | %s | %s | %s |\n", s.id, k, rate, quantiles(merged[testservers.Stock]), quantiles(merged[testservers.Larder]), strings.Join(failed, " / "))
		}
	}
}

func quantiles(r *bench.Result) string {
	if r == nil || r.Latency.TotalCount() == 0 {
		return "–"
	}
	return fmt.Sprintf("%s, %s, %s", bench.Duration(r.Quantile(50)), bench.Duration(r.Quantile(99)), bench.Duration(r.Quantile(99.9)))
}

// Markdown is the table as text to paste.
func (t *Table) Markdown() string {
	var b strings.Builder
	setups := t.setups()
	b.WriteString(t.Head.Markdown("") + "\n")
	for _, s := range setups {
		requests, _ := s.mean(s.any.Server, steadyPart, func(r *Result) float64 { return float64(r.Steady.ops()) / r.Steady.Cost.Wall.Seconds() })
		events, _ := s.mean(s.any.Server, steadyPart, func(r *Result) float64 { return r.EventsPerSecond })
		fmt.Fprintf(&b, "- %s, %s: %d watches, %.0f requests and %.0f events a second\n", s.id, s.title, s.any.Watches, requests, events)
	}
	b.WriteString("\nFrom day to day:\n\n")
	figures(&b, setups, steadyPart, steadyColumns())
	b.WriteString("\nThe server is ended (SIGTERM) and started again at once:\n\n")
	figures(&b, setups, restartPart, restartColumns())
	b.WriteString("\nTimes of requests, from when each was due:\n\n")
	latencies(&b, setups, steadyPart)
	for _, r := range t.Results {
		if r.Failure != "" {
			fmt.Fprintf(&b, "\n%d nodes, %s, %s ended before its time: %s\n", r.Nodes, r.protocol(), r.Server, strings.Join(strings.Fields(r.Failure), " "))
		}
		if n, first := r.Steady.failures(); n > 0 {
			fmt.Fprintf(&b, "\n%d nodes, %s, %s: %d requests failed, the first: %s\n", r.Nodes, r.protocol(), r.Server, n, first)
		}
		if r.Differing > 0 {
			fmt.Fprintf(&b, "\n%d nodes, %s, %s: %d informers differ at the end, the first: %s\n", r.Nodes, r.protocol(), r.Server, r.Differing, r.FirstDiffering)
		}
	}
	return b.String()
}
