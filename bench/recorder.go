package bench

import (
	"cmp"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/larder-io/larder/bench/process"
)

// recorder collects the results of concurrent workers and the cost of processes. Cost counts only between resume
// and pause, which excludes the workload's preparation. A part's lock is taken before that of its parent.
type recorder struct {
	target *Target
	total  int
	began  time.Time
	series bool      // whether to fill Result.Series
	parent *recorder // nil unless the recorder is a part

	mu      sync.Mutex
	result  *Result
	name    string  // name and phase, for Progress
	resumed reading // zero after pause
}

// reading holds the clock and the usage of the processes at one time.
type reading struct {
	at     time.Time
	server process.Usage
	client time.Duration
	beside []time.Duration
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

func (r *recorder) read() (reading, error) {
	now := reading{at: time.Now(), client: process.OwnCPU()}
	var err error
	if now.server, err = r.target.Process.Usage(); err != nil {
		return now, err
	}
	for _, p := range r.target.Beside {
		cpu, err := p.CPU()
		if err != nil {
			return now, err
		}
		now.beside = append(now.beside, cpu)
	}
	return now, nil
}

func (r *recorder) resume() error {
	if r.target.BeforeMeasuring != nil {
		r.target.BeforeMeasuring()
	}
	now, err := r.read()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.resumed = now
	return err
}

func (r *recorder) pause() error {
	end, err := r.read()
	if err != nil { // keep the results so far
		end.server, end.beside = r.resumed.server, r.resumed.beside
		r.fail(fmt.Errorf("bench: the server, or another measured process, has ended: %w", err))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	res, start := r.result, r.resumed
	r.resumed = reading{}
	res.Wall += end.at.Sub(start.at)
	res.ServerCPU += end.server.CPU - start.server.CPU
	res.ClientCPU += end.client - start.client
	res.Reads += end.server.Reads - start.server.Reads
	res.Writes += end.server.Writes - start.server.Writes
	res.Server = end.server
	if res.Beside == nil {
		for _, p := range r.target.Beside {
			res.Beside = append(res.Beside, Cost{Name: p.Name})
		}
	}
	for i := range res.Beside {
		res.Beside[i].CPU += end.beside[i] - start.beside[i]
	}
	return nil
}

func (r *recorder) measured(work func() error) error {
	if err := r.resume(); err != nil {
		return err
	}
	if err := work(); err != nil {
		return err
	}
	return r.pause()
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
	case r.resumed.at.IsZero():
		return r.result.Wall
	}
	return r.result.Wall + time.Since(r.resumed.at)
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
type Meter struct{ rec *recorder }

// Meter starts to measure and returns the Meter.
func (t *Target) Meter() (*Meter, error) {
	m := &Meter{rec: &recorder{target: t, result: NewResult("", "")}}
	err := m.rec.resume()
	m.rec.result.Before = m.rec.resumed.server
	return m, err
}

// End ends the measurement.
func (m *Meter) End() error { return m.rec.pause() }

// Replace continues the measurement with next, which replaces the measured server. That server has ended and used
// the given CPU time in total.
func (m *Meter) Replace(used time.Duration, next *Target) {
	m.rec.result.ServerCPU += used - m.rec.resumed.server.CPU
	m.rec.resumed.server, m.rec.target = process.Usage{}, next
}

// Charge adds the measured cost to a Result, and sets its times.
func (m *Meter) Charge(r *Result) {
	own := m.rec.result
	r.Wall, r.ServerCPU, r.Reads, r.Writes = own.Wall, own.ServerCPU, own.Reads, own.Writes
	r.Before, r.Server, r.Beside, r.ClientCPU = own.Before, own.Server, own.Beside, own.ClientCPU
	r.Ops += own.Ops
	r.Errors += own.Errors
	r.FirstError = cmp.Or(r.FirstError, own.FirstError)
}
