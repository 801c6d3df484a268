package bench

import (
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/larder-io/larder/bench/process"
)

// recorder collects the results of concurrent workers, and the cost of processes during the measured part of the
// workload. A part's lock is taken before that of its parent.
type recorder struct {
	target *Target
	total  int
	began  time.Time
	series bool      // whether to fill Result.Series
	parent *recorder // nil unless the recorder is a part

	mu        sync.Mutex
	result    *Result
	name      string    // name and phase, for Progress
	measuring time.Time // when the measured part began; zero outside it
}

// recorded runs work, a workload of total operations (0 if unknown), and returns the Result. Meanwhile Progress
// reports the workload.
func (t *Target) recorded(name, unit string, total int, work func(*recorder) error) (*Result, error) {
	before, err := t.Process.Usage()
	if err != nil {
		return nil, err
	}
	rec := &recorder{target: t, total: total, name: name, began: time.Now(), series: t.Series, result: NewResult(name, unit)}
	rec.result.Before = before
	t.running.Store(rec, nil)
	defer t.running.Delete(rec)
	if err := work(rec); err != nil {
		return nil, err
	}
	return rec.finish(), nil
}

func (r *recorder) set(change func(*Result)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(r.result)
}

// part returns a recorder for some of the operations of the same run. It records no cost.
func (r *recorder) part(name, unit string) *recorder {
	p := &recorder{target: r.target, series: r.series, parent: r, result: NewResult(name, unit)}
	p.result.Part = true
	return p
}

// phase sets the phase that Progress shows.
func (r *recorder) phase(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.name = r.result.Name
	if what != "" {
		r.name += ": " + what
	}
}

// measured runs the measured part of the workload.
func (r *recorder) measured(work func() error) error {
	if r.target.BeforeMeasuring != nil {
		r.target.BeforeMeasuring()
	}
	m, err := r.target.Meter()
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.measuring = m.start.at
	r.mu.Unlock()
	if err := work(); err != nil {
		return err
	}
	m.End()
	r.mu.Lock()
	defer r.mu.Unlock()
	m.Charge(r.result)
	r.measuring = time.Time{}
	return nil
}

// finish returns the Result, which belongs to the caller.
func (r *recorder) finish() *Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.Interrupted = r.result.Interrupted || r.target.stopped()
	r.result.Protocol, _ = r.target.protocol.Load().(string) // "" if there was no connection
	if passed := r.passedLocked(); r.series && passed > 0 {
		r.secondLocked(passed - 1) // adds the last seconds, in which no operation may have ended
	}
	return r.result
}

// passedLocked returns how much measured time has passed.
func (r *recorder) passedLocked() time.Duration {
	switch {
	case r.parent != nil:
		r.parent.mu.Lock()
		defer r.parent.mu.Unlock()
		return r.parent.passedLocked()
	case r.measuring.IsZero():
		return r.result.Wall
	}
	return r.result.Wall + time.Since(r.measuring)
}

// secondLocked returns the counts of the second that contains time at.
func (r *recorder) secondLocked(at time.Duration) *Counts {
	n := int(at / time.Second)
	for len(r.result.Series) <= n {
		r.result.Series = append(r.result.Series, Counts{Latency: newHistogram(secondDigits)})
	}
	return &r.result.Series[n]
}

func (r *recorder) record(took time.Duration, o outcome, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.Record(took, o.status, err)
	r.result.Bytes += o.bytes
	if o.retries > 0 {
		r.result.Retries += o.retries
		r.result.addStatus(http.StatusTooManyRequests, o.retries)
	}
	if r.series {
		r.secondLocked(r.passedLocked()).record(took, o.status, err)
	}
}

func (r *recorder) fail(err error) { r.record(0, outcome{}, err) }

func (r *recorder) progress() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	of := ""
	if r.total > 0 {
		of = fmt.Sprintf(" of %d", r.total)
	}
	return fmt.Sprintf("%s: %d%s, %d errors, after %v", r.name, r.result.Ops, of, r.result.Failures(), time.Since(r.began).Round(time.Second))
}

// Meter measures the server while other code sends the requests. It is not safe for concurrent use.
type Meter struct {
	target     *Target
	before     process.Usage
	start, end reading
	err        error // of the reading at the end
}

// reading holds the clock and the usage of the processes at one time.
type reading struct {
	at     time.Time
	server process.Usage
	client time.Duration
	beside []time.Duration
}

func (t *Target) read() (reading, error) {
	now := reading{at: time.Now(), client: process.OwnCPU()}
	var err error
	if now.server, err = t.Process.Usage(); err != nil {
		return now, err
	}
	for _, p := range t.Beside {
		cpu, err := p.CPU()
		if err != nil {
			return now, err
		}
		now.beside = append(now.beside, cpu)
	}
	return now, nil
}

// Meter starts to measure and returns the Meter.
func (t *Target) Meter() (*Meter, error) {
	start, err := t.read()
	return &Meter{target: t, before: start.server, start: start}, err
}

// End ends the measurement.
func (m *Meter) End() {
	if m.end, m.err = m.target.read(); m.err != nil { // the other figures are valid
		m.end.server, m.end.beside = m.start.server, m.start.beside
	}
}

// Replace continues the measurement with next, which replaces the measured server. That server has ended and used
// the given CPU time in total.
func (m *Meter) Replace(used time.Duration, next *Target) {
	m.start.server = process.Usage{CPU: m.start.server.CPU - used}
	m.target = next
}

// Charge adds the measured cost to a Result. It adds an error if a measured process had ended.
func (m *Meter) Charge(r *Result) {
	start, end := m.start, m.end
	r.Wall += end.at.Sub(start.at)
	r.ServerCPU += end.server.CPU - start.server.CPU
	r.ClientCPU += end.client - start.client
	r.Reads += end.server.Reads - start.server.Reads
	r.Writes += end.server.Writes - start.server.Writes
	r.Server = end.server
	if r.Before == (process.Usage{}) {
		r.Before = m.before
	}
	if r.Beside == nil {
		for _, p := range m.target.Beside {
			r.Beside = append(r.Beside, Cost{Name: p.Name})
		}
	}
	for i := range r.Beside {
		r.Beside[i].CPU += end.beside[i] - start.beside[i]
	}
	if m.err != nil {
		r.Record(0, 0, fmt.Errorf("bench: the server, or another measured process, has ended: %w", m.err))
	}
}
