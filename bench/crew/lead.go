package crew

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/larder-io/larder/bench"
)

// Config says what is started.
type Config struct {
	// Program is started with Args, Size times.
	Program string
	Args    []string
	Size    int
	// Target is the server: it accounts for what it uses.
	Target *bench.Target
}

// Leader leads one crew. Its Progress may be asked at any time.
type Leader struct {
	config  Config
	members []*member
	heard   chan heard
	meters  map[string]*bench.Meter
	shown   atomic.Pointer[bench.Progress]
}

// member is one process.
type member struct {
	cmd      *exec.Cmd
	in       io.WriteCloser
	problem  bytes.Buffer // what it said on standard error
	ready    string       // the part that it is ready for, "" for none
	ended    string       // the part that it has ended, "" for none
	results  []*bench.Result
	finished bool // it has handed its results over, or ended
	progress bench.Progress
}

// heard is what a member says. Without a message the member has ended.
type heard struct {
	from    *member
	message *message
	err     error
}

// New returns a Leader that has started nothing.
func New(c Config) (*Leader, error) {
	if c.Size < 2 {
		return nil, fmt.Errorf("crew: want at least two processes, got %d", c.Size)
	}
	return &Leader{config: c, heard: make(chan heard), meters: make(map[string]*bench.Meter)}, nil
}

// Progress adds up that of all members. The latencies are those of the slowest.
func (l *Leader) Progress() bench.Progress {
	if p := l.shown.Load(); p != nil {
		return *p
	}
	return bench.Progress{}
}

// Run starts the members, leads them and returns the sum of their results. When stop is
// closed, they end gracefully; when ctx ends, they are killed. It returns when all have ended.
func (l *Leader) Run(ctx context.Context, stop <-chan struct{}) ([]*bench.Result, error) {
	ctx, kill := context.WithCancel(ctx)
	defer kill()
	var readers sync.WaitGroup
	defer readers.Wait()
	for k := range l.config.Size {
		m, out, err := l.start(ctx, Part{k, l.config.Size})
		if err != nil {
			kill()
			l.drain()
			return nil, err
		}
		l.members = append(l.members, m)
		readers.Go(func() { l.listen(m, out) })
	}
	err := l.lead(stop, kill)
	if err != nil {
		return nil, err
	}
	return l.sum()
}

// start starts one process.
func (l *Leader) start(ctx context.Context, part Part) (*member, io.Reader, error) {
	m := &member{cmd: exec.CommandContext(ctx, l.config.Program, l.config.Args...)}
	m.cmd.Env = append(os.Environ(), Variable+"="+part.String())
	m.cmd.Stderr = &m.problem
	out, err := m.cmd.StdoutPipe()
	if err == nil {
		m.in, err = m.cmd.StdinPipe()
	}
	if err == nil {
		err = m.cmd.Start()
	}
	if err != nil {
		return nil, nil, fmt.Errorf("crew: %w", err)
	}
	return m, out, nil
}

// listen hands on what a member says, and at last how it ended.
func (l *Leader) listen(m *member, out io.Reader) {
	lines := json.NewDecoder(out)
	var failed error
	for {
		var said message
		if err := lines.Decode(&said); err != nil {
			if !errors.Is(err, io.EOF) {
				failed = fmt.Errorf("crew: a process says what is not understood: %w", err)
				io.Copy(io.Discard, out)
			}
			break
		}
		l.heard <- heard{m, &said, nil}
	}
	l.heard <- heard{m, nil, errors.Join(m.cmd.Wait(), failed)}
}

// lead hears the members until all have ended, and lets parts begin.
func (l *Leader) lead(stop <-chan struct{}, kill func()) error {
	var failed error
	stopping := false
	for running := len(l.members); running > 0; {
		select {
		case <-stop:
			stop, stopping = nil, true
			for _, m := range l.members {
				m.in.Close() // it hears that it shall end
			}
			continue
		case h := <-l.heard:
			if h.message == nil {
				running--
				h.from.finished = true
				if h.err != nil && failed == nil && !stopping {
					failed = fmt.Errorf("crew: one of %d processes failed: %w: %s", l.config.Size, h.err, strings.TrimSpace(h.from.problem.String()))
					kill() // the others would wait for it
				}
			} else {
				h.from.hear(h.message)
			}
		}
		if err := l.step(); err != nil && failed == nil {
			failed = err
			kill()
		}
	}
	return failed
}

// drain waits until all members have ended.
func (l *Leader) drain() {
	for running := len(l.members); running > 0; {
		if h := <-l.heard; h.message == nil {
			running--
		}
	}
}

// hear notes what a member says.
func (m *member) hear(said *message) {
	switch {
	case said.Begin != "":
		m.ready, m.ended = said.Begin, ""
	case said.End != "":
		m.ready, m.ended = "", said.End
	case said.Progress != nil:
		m.progress = *said.Progress
	case said.Results != nil:
		m.results, m.finished = said.Results.List, true
		m.in.Close()
	}
}

// step lets a part begin when all members are ready for it, and ends it when all have ended it.
func (l *Leader) step() error {
	l.show()
	ready, ended, name := 0, 0, ""
	working := 0
	for _, m := range l.members {
		if m.finished {
			continue
		}
		working++
		switch {
		case m.ready != "":
			ready++
			name = m.ready
		case m.ended != "":
			ended++
		}
	}
	if ready+ended < working {
		return nil // one measures, or prepares its first part
	}
	for name, meter := range l.meters {
		if meter.Running() {
			if err := meter.End(); err != nil {
				return fmt.Errorf("crew: %s: %w", name, err)
			}
		}
	}
	if working == 0 || ready < working {
		return nil // some have yet to be ready for the next part, or to finish
	}
	return l.begin(name)
}

// begin begins a part in all members.
func (l *Leader) begin(name string) error {
	meter := l.meters[name]
	if meter == nil {
		var err error
		if meter, err = l.config.Target.Meter(); err != nil {
			return err
		}
		l.meters[name] = meter
	}
	if err := meter.Begin(); err != nil {
		return err
	}
	for _, m := range l.members {
		if m.finished {
			continue
		}
		m.ready = ""
		_, _ = io.WriteString(m.in, goAhead+"\n") // that a member has ended is heard otherwise
	}
	return nil
}

// show adds up the progress.
func (l *Leader) show() {
	var sum bench.Progress
	for _, m := range l.members {
		p := m.progress
		if p.Name == "" {
			continue
		}
		sum.Name = p.Name
		sum.Done += p.Done
		sum.Errors += p.Errors
		sum.Total += p.Total
		sum.Elapsed, sum.P50, sum.P99 = max(sum.Elapsed, p.Elapsed), max(sum.P50, p.P50), max(sum.P99, p.P99)
	}
	l.shown.Store(&sum)
}

// sum adds up what all members have counted.
func (l *Leader) sum() ([]*bench.Result, error) {
	var shares []*bench.Result
	for _, m := range l.members {
		shares = append(shares, m.results...)
	}
	if len(shares) == 0 {
		return nil, errors.New("crew: nothing was measured")
	}
	var all []*bench.Result
	for _, each := range bench.Rounds(shares) {
		r := bench.MergeParallel(each...)
		if meter := l.meters[r.Name]; meter != nil {
			meter.Charge(r)
		}
		all = append(all, r)
	}
	return all, nil
}
