package bench

import (
	"cmp"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/larder-io/larder/bench/process"
)

// recorder collects the results of concurrent workers and the cost of the processes. Cost counts only between
// resume and pause, so a workload can prepare itself outside of them. The lock of a part is taken before that of
// the whole.
type recorder struct {
	target *Target
	total  int
	began  time.Time
	series bool      // whether Result.Series is wanted
	whole  *recorder // of which this is a part, nil for none

	mu      sync.Mutex
	result  *Result
	name    string  // with the phase, for people
	resumed reading // the zero value after pause
}

// reading is the state of the clocks at one time.
type reading struct {
	at     time.Time
	server process.Usage
	client time.Duration
	beside []time.Duration
}

// recorded does the work of a workload of total operations, 0 if that is not known, and returns the Result.
// Progress shows it until then.
func (t *Target) recorded(name, unit string, total int, work func(*recorder) error) (*Result, error) {
	before, err := t.Process.Usage()
	if err != nil {
		return nil, err
	}
	rec := &recorder{target: t, total: total, name: name, began: time.Now(), series: t.Series, result: NewResult(name, unit)}
	rec.result.Before = before
	t.running.Store(rec)
	defer t.running.CompareAndSwap(rec, nil)
	if err := work(rec); err != nil {
		return nil, err
	}
	return rec.finish(), nil
}

// set changes the result.
func (r *recorder) set(change func(*Result)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(r.result)
}

// part returns a recorder for some of the operations of the same run. It records no cost.
func (r *recorder) part(name, unit string) *recorder {
	p := &recorder{target: r.target, series: r.series, whole: r, result: NewResult(name, unit)}
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
	now := reading{at: time.Now(), client: process.Own()}
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

// resume begins a measured part.
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

// pause ends a measured part.
func (r *recorder) pause() error {
	end, err := r.read()
	if err != nil { // return the results so far
		end.server, end.beside = r.resumed.server, r.resumed.beside
		r.fail(fmt.Errorf("bench: the server's process, or one beside it, has ended: %w", err))
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

// measured runs work as a measured part.
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
	r.result.Protocol, _ = r.target.spoken.Load().(string) // none if there was no connection
	if passed := r.passedLocked(); r.series && passed > 0 {
		r.secondLocked(passed - 1) // nothing may have ended in the last seconds
	}
	return r.result
}

// passedLocked is how much measured time has passed.
func (r *recorder) passedLocked() time.Duration {
	switch {
	case r.whole != nil:
		r.whole.mu.Lock()
		defer r.whole.mu.Unlock()
		return r.whole.passedLocked()
	case r.resumed.at.IsZero():
		return r.result.Wall
	}
	return r.result.Wall + time.Since(r.resumed.at)
}

// secondLocked returns the counts of a second of the measured time.
func (r *recorder) secondLocked(at time.Duration) *Counts {
	n := int(at / time.Second)
	for len(r.result.Series) <= n {
		r.result.Series = append(r.result.Series, Counts{Latency: newHistogram(secondDigits)})
	}
	return &r.result.Series[n]
}

// record counts one operation.
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

// fail counts an operation that failed.
func (r *recorder) fail(err error) { r.record(0, outcome{}, err) }

func (r *recorder) progress() Progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Progress{Name: r.name, Done: r.result.Ops, Errors: r.result.Failures(), Total: r.total, Elapsed: time.Since(r.began)}
}

// Meter measures the server while other code sends the requests. One goroutine uses it.
type Meter struct{ rec *recorder }

// Meter returns a Meter that begins to measure.
func (t *Target) Meter() (*Meter, error) {
	m := &Meter{rec: &recorder{target: t, result: NewResult("", "")}}
	err := m.rec.resume()
	m.rec.result.Before = m.rec.resumed.server
	return m, err
}

// End ends the measurement.
func (m *Meter) End() error { return m.rec.pause() }

// Replace continues with a server that took the place of one. The old server has ended and has
// used so much CPU time in all.
func (m *Meter) Replace(used time.Duration, next *Target) {
	m.rec.result.ServerCPU += used - m.rec.resumed.server.CPU
	m.rec.resumed.server, m.rec.target = process.Usage{}, next
}

// Charge adds to a Result the cost that was measured, and sets its time.
func (m *Meter) Charge(r *Result) {
	own := m.rec.result
	r.Wall, r.ServerCPU, r.Reads, r.Writes = own.Wall, own.ServerCPU, own.Reads, own.Writes
	r.Before, r.Server, r.Beside, r.ClientCPU = own.Before, own.Server, own.Beside, own.ClientCPU
	r.Ops += own.Ops
	r.Errors += own.Errors
	r.FirstError = cmp.Or(r.FirstError, own.FirstError)
}
