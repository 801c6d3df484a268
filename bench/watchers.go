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

// mark begins the text in a changed object that holds the numbers of the run and the change. A watcher finds it without
// decoding the event, and looks up when the change was due. With the run's number, the patches of the next run change
// the objects again.
const (
	mark         = "LBSEQ"
	runDigits    = 14
	changeDigits = 8
)

// annotation is the annotation that holds the mark.
const annotation = "larder-bench/change"

// How many watches to open concurrently: normally, and when all reconnect at once.
const (
	opening    = 16
	openingAll = 256
)

// watchers are open watches, each with a goroutine that reads it. open opens them, begin starts the readers, and
// close ends both.
type watchers struct {
	target  *Target
	rec     *recorder
	calls   func(i int) Request
	atOnce  int       // how many to open concurrently
	since   time.Time // start of the latency of opening; zero: when each watch starts to open
	streams []*stream
	stuck   int // number of the first watcher that never reads; 0: none
	readers sync.WaitGroup
	opened  context.Context // ends with close; nil before open
	done    func()          // ends opened

	run       int64          // the run whose changes count
	sent      []atomic.Int64 // UnixNano at which each change was due
	responded []atomic.Int64 // UnixNano of the response to each change, 0 before
	delivered atomic.Int64
	progress  chan struct{} // holds an element after a delivery

	mu    sync.Mutex
	after *hdrhistogram.Histogram // guarded by mu: times from responses to deliveries
}

// open opens n watches, or fewer if the target is stopped. If record is set, each is an operation of the result.
func (w *watchers) open(ctx context.Context, n int, record bool) error {
	ctx, cancel := context.WithCancel(ctx)
	w.opened, w.done = ctx, cancel
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
			if record && ctx.Err() == nil {
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

// begin starts the readers of the first watchers.
func (w *watchers) begin(readers, changes int) {
	w.sent, w.responded = make([]atomic.Int64, changes), make([]atomic.Int64, changes)
	w.after = newHistogram(latencyDigits)
	w.run = newRun()
	w.progress = make(chan struct{}, 1)
	for _, s := range w.streams[:readers] {
		if s == nil { // stopped before it was opened
			continue
		}
		w.readers.Go(func() {
			if err := w.follow(s); err != nil && w.opened.Err() == nil {
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
		w.delivered.Add(1)
		select {
		case w.progress <- struct{}{}:
		default:
		}
	}
}

// recordAfter records the time from the response to a change until its delivery, 0 if the delivery came first.
func (w *watchers) recordAfter(number int, now time.Time) {
	late := time.Duration(0)
	if responded := w.responded[number].Load(); responded != 0 {
		late = max(0, now.Sub(time.Unix(0, responded)))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.after.RecordValue(late.Microseconds()) // fails only for more than the histogram's ten minutes
}

// lateness returns a quantile of the times that recordAfter has recorded, in seconds.
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

// markText returns the text that marked finds for change i of a run.
func markText(run int64, i int) string {
	return fmt.Sprintf("%s%0*d%0*d", mark, runDigits, run, changeDigits, i)
}

func newRun() int64 { return time.Now().UnixMilli() }

// awaitProgress waits until all expected deliveries have arrived, or none has arrived for the given time. It returns
// how many are missing.
func (w *watchers) awaitProgress(ctx context.Context, expected int, patience time.Duration) (missing int) {
	for {
		if missing = expected - int(w.delivered.Load()); missing <= 0 {
			return 0
		}
		select {
		case <-w.progress:
		case <-ctx.Done():
			return missing
		case <-time.After(patience):
			return missing
		}
	}
}

var errUndelivered = errors.New("bench: a change was not delivered")

// awaitDeliveries waits for missing deliveries, and records those that do not arrive.
func (w *watchers) awaitDeliveries(ctx context.Context, expected int, patience time.Duration) error {
	if w.target.stopped() { // the expected number is unknown
		w.awaitProgress(ctx, expected, min(patience, time.Second))
		return ctx.Err()
	}
	for range w.awaitProgress(ctx, expected, patience) {
		w.rec.fail(errUndelivered)
	}
	return ctx.Err()
}

func (w *watchers) close() {
	if w.done != nil {
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

// MemoryPerWatch names the Value of Hold with the resident memory that each watch adds.
const MemoryPerWatch = "memory per watch"

// HoldConfig is a workload of watches that receive no events.
type HoldConfig struct {
	Name string
	// Path is the collection to watch, Accept the media type of the events.
	Path, Accept string
	Watchers     int
	// Idle is how long Hold keeps the watches open before it reads the server's memory.
	Idle time.Duration
}

// Hold opens watches. It records the time of each, including its TLS handshake, the server's CPU time, and the
// growth of the server's memory.
func Hold(ctx context.Context, t *Target, c HoldConfig) (*Result, error) {
	return c.measure(ctx, t, func(rec *recorder, w *watchers) error {
		if err := rec.measured(func() error { return w.open(ctx, c.Watchers, true) }); err != nil {
			return err
		}
		w.begin(c.Watchers, 0) // notices watches that end
		rec.phase("idle")
		return c.idle(ctx, t, rec)
	})
}

// measure passes unopened watches to do, and closes them afterwards.
func (c *HoldConfig) measure(ctx context.Context, t *Target, do func(*recorder, *watchers) error) (*Result, error) {
	if c.Watchers < 1 || c.Idle < 0 {
		return nil, fmt.Errorf("bench: --watchers must be at least 1 and --idle at least 0, are %d and %v", c.Watchers, c.Idle)
	}
	return t.recorded(c.Name, "watch", c.Watchers, func(rec *recorder) error {
		revision, err := t.revision(ctx, c.Path)
		if err != nil {
			return err
		}
		watch := watchCall(c.Path, revision, c.Accept)
		w := &watchers{target: t, rec: rec, atOnce: opening, calls: func(int) Request { return watch }}
		defer w.close()
		rec.phase("opening")
		return do(rec, w)
	})
}

// idle waits, and then records the memory of the open watches.
func (c *HoldConfig) idle(ctx context.Context, t *Target, rec *recorder) error {
	idle, end := context.WithTimeout(ctx, c.Idle)
	defer end()
	select {
	case <-idle.Done():
	case <-t.Stopping():
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	after, err := t.Process.Usage()
	if err != nil {
		return err
	}
	rec.set(func(r *Result) {
		r.Server = after
		if r.Ops > 0 && t.Process.PID != 0 {
			r.Add(MemoryPerWatch, float64(after.RSS-r.Before.RSS)/float64(r.Ops), "B")
		}
	})
	return nil
}

// Storm opens watches, closes them all at once and reopens them at their first revision. It records the time from
// the close until the server has accepted each again, and the server's cost in that time.
func Storm(ctx context.Context, t *Target, c HoldConfig) (*Result, error) {
	return c.measure(ctx, t, func(rec *recorder, w *watchers) error {
		if err := w.open(ctx, c.Watchers, false); err != nil {
			return err
		}
		rec.phase("reconnecting")
		return rec.measured(func() error {
			w.close()
			w.since, w.atOnce = time.Now(), openingAll
			return w.open(ctx, c.Watchers, true)
		})
	})
}
