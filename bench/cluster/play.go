package cluster

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/larder-io/larder/bench/testservers"
)

// play is one cluster's components at one server, which may be restarted meanwhile.
type play struct {
	*world
	started     *testservers.Servers
	host        string
	connections int     // of a component by HTTP/2, 0 by HTTP/1.1
	churn       float64 // pods that are replaced in a second

	phase atomic.Pointer[phase]
	seed  maphash.Seed

	over    context.Context // ends everything
	end     context.CancelFunc
	running sync.WaitGroup
	lives   sync.WaitGroup // chains of requests under way
	still   atomic.Bool    // no more begin

	lost, events, received, expired atomic.Int64

	nodes   []*node
	control *control

	mu    sync.Mutex
	bound map[string]sent // pods whose kubelets shall see them soon
}

// sent says when something was due, in which phase. arrived is closed when it came.
type sent struct {
	due     time.Time
	phase   *phase
	arrived chan struct{}
}

func newPlay(ctx context.Context, w *world, f *testservers.Servers, host string, connections int, churn float64) *play {
	p := &play{
		world: w, started: f, host: host, connections: connections, churn: churn,
		seed: maphash.MakeSeed(), bound: make(map[string]sent),
	}
	p.phase.Store(newPhase())
	p.over, p.end = context.WithCancel(ctx)
	return p
}

// close ends everything and waits for it.
func (p *play) close() {
	p.mu.Lock()
	p.end()
	p.mu.Unlock()
	p.running.Wait()
}

// at calls act with due in a goroutine of its own when due has come. Nothing waits for anything
// else: the load stays what it is when the server is slow.
func (p *play) at(due time.Time, act func(due time.Time)) {
	time.AfterFunc(time.Until(due), func() {
		p.mu.Lock()
		over := p.over.Err() != nil
		if !over {
			p.running.Add(1)
		}
		p.mu.Unlock()
		if !over {
			defer p.running.Done()
			act(due)
		}
	})
}

// client returns one component's client.
func (p *play) client(agent, user string, groups ...string) (*client, error) {
	identity, err := p.started.Identity(user, groups...)
	if err != nil {
		return nil, err
	}
	return newClient(p.over, p.host, agent, identity, p.connections), nil
}

// together is how many informers may wait for their first objects while nodes start.
const together = 400

// open starts all components, and waits until all informers have what they follow.
func (p *play) open(ctx context.Context, limit time.Duration) (err error) {
	if p.control, err = p.newControl(); err != nil {
		return err
	}
	p.nodes = make([]*node, p.size.nodes)
	group := errgroup.Group{}
	group.SetLimit(8)
	for i := range p.nodes {
		group.Go(func() (err error) {
			p.nodes[i], err = p.newNode(i)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	p.control.start()
	for _, n := range p.nodes {
		for p.lost.Load() > together {
			if !sleep(ctx, time.Millisecond) {
				return fmt.Errorf("cluster: %d informers wait for their first objects: %w", p.lost.Load(), ctx.Err())
			}
		}
		n.start()
	}
	return p.awaitAll(ctx, limit)
}

// begin begins the load: heartbeats, and pods that come and go.
func (p *play) begin() {
	start := time.Now()
	for _, n := range p.nodes {
		n.beat(start)
	}
	p.control.beat(start)
	p.renewTokens(start)
	if p.churn <= 0 {
		return
	}
	between := time.Duration(float64(time.Second) / p.churn)
	p.every(start.Add(between), between, func(due time.Time) {
		if !p.still.Load() {
			p.replacePod(due)
		}
	})
}

// rest lets no more pods come and go, and waits for what is under way, at most for some time.
func (p *play) rest(limit time.Duration) {
	p.still.Store(true)
	done := make(chan struct{})
	p.running.Go(func() {
		defer close(done)
		p.lives.Wait()
	})
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}

// Times that clients give a request: heartbeats the interval of the node's status, others what
// the server gives.
const (
	usualTimeout = 60 * time.Second
	beatTimeout  = 10 * time.Second
)

// retryAfter is for how long a component waits after a failure, about.
const retryAfter = 500 * time.Millisecond

// errGaveUp says that a request failed for a reason that will not go.
var errGaveUp = errors.New("cluster: the request cannot succeed")

// send sends a request that was due at some time, and again after failures, as the queues of
// components do. build makes it, each time anew. Each try counts.
func (p *play) send(kind requestKind, due time.Time, c *client, build func() *request) ([]byte, error) {
	for {
		at := p.phase.Load()
		ctx, cancel := context.WithTimeout(p.over, usualTimeout)
		body, err := c.do(ctx, build())
		cancel()
		if p.over.Err() != nil {
			return nil, p.over.Err()
		}
		code := status(err)
		if err == nil {
			code = http.StatusOK
		}
		if err != nil && (code == http.StatusConflict && kind != podCreation || code == http.StatusNotFound) {
			// Part of how components work: they read again, or have nothing to do any more.
			at.record(kind, time.Since(due), code, nil)
		} else {
			at.record(kind, time.Since(due), code, err)
		}
		switch {
		case err == nil:
			return body, nil
		case code == http.StatusNotFound, code == http.StatusConflict && kind == podCreation, code == http.StatusUnprocessableEntity, code == http.StatusBadRequest:
			return nil, fmt.Errorf("%w: %w", errGaveUp, err)
		}
		if !sleep(p.over, retryAfter) {
			return nil, p.over.Err()
		}
		due = time.Now()
	}
}

// step is something that is due some time after a chain began.
type step struct {
	after time.Duration
	do    func(due time.Time) error
}

// chain does steps one after the other, each when it is due, or when the one before is done if
// that is later. It ends with the first that gives up.
func (p *play) chain(start time.Time, steps ...step) (done bool) {
	for _, s := range steps {
		due := start.Add(s.after)
		if !sleep(p.over, time.Until(due)) || s.do(due) != nil {
			return false
		}
	}
	return true
}

// expect notes that a kubelet shall see a pod, and returns what is closed when it does.
func (p *play) expect(name string, due time.Time) (arrived <-chan struct{}) {
	s := sent{due, p.phase.Load(), make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bound[name] = s
	return s.arrived
}

// seen notes that it did.
func (p *play) seen(name string) {
	p.mu.Lock()
	s, ok := p.bound[name]
	delete(p.bound, name)
	p.mu.Unlock()
	if ok {
		close(s.arrived)
		s.phase.record(delivery, time.Since(s.due), 0, nil)
	}
}

// forget says that a pod has gone: who waits for it to be seen waits in vain.
func (p *play) forget(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s, ok := p.bound[name]; ok {
		delete(p.bound, name)
		close(s.arrived)
	}
}
