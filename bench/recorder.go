package bench

import (
	"sync"
	"syscall"
	"time"

	"github.com/larder-io/larder/bench/process"
)

// recorder gathers what concurrent workers saw and what it cost the processes. Cost
// counts between resume and pause alone, so that a workload can prepare itself in
// between.
type recorder struct {
	target *Target
	total  int
	began  time.Time

	mu      sync.Mutex
	result  *Result
	name    string // with the phase, for people
	resumed reading
}

// reading is what the clocks say at one moment.
type reading struct {
	at     time.Time
	server process.Usage
	client time.Duration
	beside []time.Duration
}

// newRecorder begins a workload of total operations, 0 if that is not known. It is
// what Progress tells of until finish.
func (t *Target) newRecorder(name, unit string, total int) (*recorder, error) {
	before, err := t.Process.Usage()
	if err != nil {
		return nil, err
	}
	rec := &recorder{
		target: t, total: total, name: name, began: time.Now(),
		result: &Result{Name: name, Unit: unit, Latency: newHistogram(), Before: before},
	}
	t.running.Store(rec)
	return rec, nil
}

// phase says for Progress what the workload is doing.
func (r *recorder) phase(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.name = r.result.Name
	if what != "" {
		r.name += ": " + what
	}
}

func (r *recorder) read() (reading, error) {
	now := reading{at: time.Now(), client: ownCPU()}
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
func (r *recorder) resume() (err error) {
	r.resumed, err = r.read()
	return err
}

// pause ends a measured part.
func (r *recorder) pause() error {
	end, err := r.read()
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	res, start := r.result, r.resumed
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
	r.target.running.CompareAndSwap(r, nil)
	return r.result
}

// record counts one operation.
func (r *recorder) record(took time.Duration, bytes int64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.Ops++
	r.result.Bytes += bytes
	if err != nil {
		r.failLocked(err)
		return
	}
	// Out of range cannot happen: an operation that takes ten minutes has failed.
	_ = r.result.Latency.RecordValue(max(1, took.Microseconds()))
}

// latency records a time that is no operation of its own.
func (r *recorder) latency(took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.result.Latency.RecordValue(max(1, took.Microseconds()))
}

// fail counts an operation that failed.
func (r *recorder) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.Ops++
	r.failLocked(err)
}

func (r *recorder) failLocked(err error) {
	r.result.Errors++
	if r.result.FirstError == "" {
		r.result.FirstError = err.Error()
	}
}

func (r *recorder) progress() Progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Progress{
		Name: r.name, Done: r.result.Ops, Errors: r.result.Errors, Total: r.total, Elapsed: time.Since(r.began),
		P50: r.result.Quantile(50), P99: r.result.Quantile(99),
	}
}

// ownCPU is the CPU time that this process has used.
func ownCPU() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
