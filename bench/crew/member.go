package crew

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/larder-io/larder/bench"
)

// Variable is the environment variable by which a process learns its Part.
const Variable = "LARDER_BENCH_PART"

// Part is which of how many shares of the load a process runs. The zero Part is all of it.
type Part struct{ Number, Of int }

// ParsePart reads the value of Variable, which Run has set for this process; the zero Part if
// it is "".
func ParsePart(text string) (Part, error) {
	if text == "" {
		return Part{}, nil
	}
	number, of, _ := strings.Cut(text, "/")
	k, err := strconv.Atoi(number)
	n, failed := strconv.Atoi(of)
	if err != nil || failed != nil || k < 0 || k >= n {
		return Part{}, fmt.Errorf("crew: %s=%q: want NUMBER/OF", Variable, text)
	}
	return Part{k, n}, nil
}

// String writes the Part as ParsePart reads it.
func (p Part) String() string { return fmt.Sprintf("%d/%d", p.Number, p.Of) }

// message is a line from a member to its leader. One field is set.
type message struct {
	Begin    string          `json:"begin,omitempty"`
	End      string          `json:"end,omitempty"`
	Progress *bench.Progress `json:"progress,omitempty"`
	Results  *results        `json:"results,omitempty"`
}

type results struct {
	List []*bench.Result `json:"list"`
}

// goAhead is the line from the leader that lets a measured part begin.
const goAhead = "go"

// Member is the side of a process that a Leader has started. It implements bench.Gate.
type Member struct {
	mu  sync.Mutex
	out *json.Encoder // guarded by mu

	words   chan struct{} // one for each goAhead
	left    chan struct{} // closed when the leader has gone
	done    chan struct{}
	working sync.WaitGroup
}

// Join begins to listen to the leader, and tells it of the target's progress. When the leader
// says nothing more, the target is stopped.
func Join(in io.Reader, out io.Writer, target *bench.Target) *Member {
	m := &Member{out: json.NewEncoder(out), words: make(chan struct{}, 1), left: make(chan struct{}), done: make(chan struct{})}
	m.working.Go(func() {
		defer close(m.left)
		defer target.Stop()
		for lines := bufio.NewScanner(in); lines.Scan(); {
			if lines.Text() == goAhead {
				m.words <- struct{}{}
			}
		}
	})
	m.working.Go(func() { m.report(target) })
	target.Gate = m
	return m
}

// report tells of progress now and then.
func (m *Member) report(target *bench.Target) {
	const every = 250 * time.Millisecond
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-m.done:
			return
		case <-tick.C:
		}
		if p := target.Progress(); p.Name != "" {
			if m.send(message{Progress: &p}) != nil {
				return
			}
		}
	}
}

func (m *Member) send(message message) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.out.Encode(message); err != nil {
		return fmt.Errorf("crew: %w", err)
	}
	return nil
}

// errLeft says that the leader has gone before a part could begin.
var errLeft = errors.New("crew: stopped before the load began")

// Begin implements bench.Gate: it waits until all members are ready.
func (m *Member) Begin(name string) error {
	if err := m.send(message{Begin: name}); err != nil {
		return err
	}
	select {
	case <-m.words:
		return nil
	case <-m.left:
		return errLeft
	}
}

// End implements bench.Gate.
func (m *Member) End(name string) error { return m.send(message{End: name}) }

// Finish hands the results over and waits until the leader has them.
func (m *Member) Finish(list []*bench.Result) error {
	close(m.done)
	err := m.send(message{Results: &results{list}})
	m.working.Wait()
	return err
}
