package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/watch"
)

// mark begins the text in a changed object that has the number of the run and of the change. A watcher finds
// it without decoding the event, and so knows when the change was due. Without the run, a change of the next
// run might change nothing.
const (
	mark         = "LBSEQ"
	runDigits    = 14
	changeDigits = 8
)

// annotation is where a change leaves its mark.
const annotation = "larder-bench/change"

// How many watches are opened at a time: usually, and when all are opened again at once.
const (
	opening    = 16
	openingAll = 256
)

// watchers are open watches, each read by a goroutine of its own. They are opened by
// open and read between begin and close.
type watchers struct {
	target  *Target
	rec     *recorder
	calls   func(i int) Request
	atOnce  int       // how many are opened at a time
	since   time.Time // from when opening counts; zero: each from its own begin
	streams []*stream
	stuck   int // from which number on watchers never read; 0: none
	readers sync.WaitGroup
	done    func() // ends what readers wait for

	run       int64          // of the changes that count
	sent      []atomic.Int64 // UnixNano at which each change was intended
	answered  []atomic.Int64 // UnixNano at which the answer to it had come, 0 before
	delivered atomic.Int64
	expected  atomic.Int64
	all       chan struct{} // closed when expected changes were delivered
	complete  sync.Once     // closes all
	closing   atomic.Bool

	mu    sync.Mutex
	after *hdrhistogram.Histogram // guarded by mu: how much later than the answers deliveries came
}

// open opens n watches, or fewer if the target is stopped. If each is true, each counts as an
// operation.
func (w *watchers) open(ctx context.Context, n int, each bool) error {
	ctx, cancel := context.WithCancel(ctx)
	w.done = cancel
	w.streams = make([]*stream, n)
	group, opened := errgroup.WithContext(ctx)
	group.SetLimit(w.atOnce)
	for i := range n {
		group.Go(func() error {
			if opened.Err() != nil {
				return opened.Err()
			}
			if w.target.stopped() {
				return nil
			}
			start := w.since
			if start.IsZero() {
				start = time.Now()
			}
			conn := w.target.conn(ctx)
			conn.stuck = w.stuck > 0 && i >= w.stuck
			s, err := conn.watch(w.calls(i))
			if err != nil {
				conn.close()
			}
			w.streams[i] = s
			if each && ctx.Err() == nil {
				w.rec.record(time.Since(start), outcome{status: StatusOf(err)}, err)
				return nil
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		w.close()
		return err
	}
	return nil
}

// begin starts reading on the watchers with numbers below readers.
func (w *watchers) begin(readers int, changes int, expected int64) {
	w.sent, w.answered = make([]atomic.Int64, changes), make([]atomic.Int64, changes)
	w.after = newHistogram(latencyDigits)
	w.run = newRun()
	w.expected.Store(expected)
	w.all = make(chan struct{})
	for _, s := range w.streams[:readers] {
		if s == nil { // stopped before it was opened
			continue
		}
		w.readers.Go(func() {
			if err := w.follow(s); err != nil && !w.closing.Load() {
				w.rec.fail(err)
			}
		})
	}
}

// follow reads one watch until it ends.
func (w *watchers) follow(s *stream) error {
	for {
		frame, err := s.next()
		if err != nil {
			return fmt.Errorf("bench: a watch ended: %w", err)
		}
		now := time.Now()
		switch typeOf(frame) {
		case watch.Bookmark:
			continue
		case watch.Error:
			return fmt.Errorf("bench: a watch ended: %q", frame[:min(len(frame), 300)])
		}
		run, number, ok := marked(frame)
		if !ok || run != w.run || number >= len(w.sent) {
			continue // not a change of this run
		}
		w.rec.record(now.Sub(time.Unix(0, w.sent[number].Load())), outcome{bytes: int64(len(frame))}, nil)
		w.recordAfter(number, now)
		if w.delivered.Add(1) >= w.expected.Load() {
			w.complete.Do(func() { close(w.all) })
		}
	}
}

// recordAfter records how much later than the answer to its change a delivery came: not at all
// if there was no answer yet.
func (w *watchers) recordAfter(number int, now time.Time) {
	late := time.Duration(0)
	if answered := w.answered[number].Load(); answered != 0 {
		late = max(0, now.Sub(time.Unix(0, answered)))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.after.RecordValue(late.Microseconds()) // out of range: it took longer than the histogram's ten minutes
}

// lateness returns a quantile of the delays that recordAfter has recorded.
func (w *watchers) lateness(quantile float64) float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return (time.Duration(w.after.ValueAtQuantile(quantile)) * time.Microsecond).Seconds()
}

// marked returns the run and the number of the change in a frame.
func marked(frame []byte) (run int64, number int, ok bool) {
	at := bytes.Index(frame, []byte(mark))
	if at < 0 || len(frame) < at+len(mark)+runDigits+changeDigits {
		return 0, 0, false
	}
	digits := frame[at+len(mark):]
	run, err := strconv.ParseInt(string(digits[:runDigits]), 10, 64)
	if err != nil {
		return 0, 0, false
	}
	number, err = strconv.Atoi(string(digits[runDigits:][:changeDigits]))
	return run, number, err == nil
}

// markText is the text by which marked knows change i of a run.
func markText(run int64, i int) string {
	return fmt.Sprintf("%s%0*d%0*d", mark, runDigits, run, changeDigits, i)
}

// newRun numbers a run.
func newRun() int64 { return time.Now().UnixMilli() }

// expectLess expects n deliveries less, because changes have failed.
func (w *watchers) expectLess(n int64) {
	if w.delivered.Load() >= w.expected.Add(-n) {
		w.complete.Do(func() { close(w.all) })
	}
}

// settle waits until everything expected was delivered or nothing more comes, and
// returns how many deliveries are missing.
func (w *watchers) settle(ctx context.Context, patience time.Duration) int64 {
	for last := w.delivered.Load(); ; {
		select {
		case <-w.all:
			return 0
		case <-ctx.Done():
			return w.expected.Load() - w.delivered.Load()
		case <-time.After(patience):
		}
		now := w.delivered.Load()
		if now == last {
			return w.expected.Load() - now
		}
		last = now
	}
}

var errUndelivered = errors.New("bench: a change was not delivered")

// awaitDeliveries waits for missing deliveries, and records those that do not arrive.
func (w *watchers) awaitDeliveries(ctx context.Context, patience time.Duration) error {
	if w.target.stopped() { // how many there should be is not known
		w.settle(ctx, min(patience, time.Second))
		return ctx.Err()
	}
	for range max(0, w.settle(ctx, patience)) {
		w.rec.fail(errUndelivered)
	}
	return ctx.Err()
}

// close ends all watches and waits for their readers.
func (w *watchers) close() {
	w.closing.Store(true)
	if w.done != nil { // it was opened
		w.done()
	}
	for _, s := range w.streams {
		if s != nil {
			s.conn.close()
		}
	}
	w.readers.Wait()
	w.streams = nil
}
