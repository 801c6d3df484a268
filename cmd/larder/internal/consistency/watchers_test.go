package consistency

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/larder-io/larder/watch/watchtest"
)

// watcher watches with a filter, resuming at random replicas, until it has seen its goal.
type watcher struct {
	*client
	of     *resource
	filter filter
	goal   *atomic.Int64 // 0 until the end of the run

	parts      []*part
	deliveries int
	expired    int
}

func (w *watcher) String() string {
	return fmt.Sprintf("watcher %d of %v%s", w.id, w.of, w.filter.query())
}

func (w *watcher) selects(s *watchtest.State) bool { return w.filter.selects(s.Labels["g"], s.Key) }

// reached reports whether the watcher has reached its goal.
func (w *watcher) reached() bool {
	goal := w.goal.Load()
	return goal != 0 && len(w.parts) > 0 && w.parts[len(w.parts)-1].Resume() >= goal
}

func (w *watcher) run(ctx context.Context) {
	initial := true // whether the next watch requests initial events
	for n := 0; !w.reached() && ctx.Err() == nil; n++ {
		request := watchtest.Request{Selects: w.selects, Initial: initial}
		query := "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
		if !initial {
			request.After, request.Resumed = w.resume(), true
			query = fmt.Sprintf("&resourceVersion=%d", request.After)
		}
		part, replica := &part{Checker: watchtest.NewChecker(request)}, w.replica()
		expired := w.stream(ctx, part, replica, query)
		switch {
		case expired && !replica.stock && !replica.relay && !w.injects && (initial || request.After >= w.compacted.Load()):
			w.fail("W5 Resumable: %v after %d: %s, and no revision from %d on was compacted\n%s", w, request.After, part.message, w.compacted.Load(), w.evidence(ctx, replica))
			initial = true
		case expired:
			w.expired++
			initial = true
		case part.events > 0:
			w.parts = append(w.parts, part)
			w.deliveries += part.events
			initial = initial && part.Resume() == 0
		}
		pause(ctx, 50*time.Millisecond)
	}
}

// evidence returns what may explain why a replica has dropped events that etcd still has.
func (w *watcher) evidence(ctx context.Context, from *replica) string {
	oldest, err := w.cluster.outsider.Compacted(ctx)
	said := slices.DeleteFunc(strings.Split(from.Output(), "\n"), func(line string) bool { return strings.Contains(line, "reflector.go") })
	return fmt.Sprintf("%s; etcd's oldest revision is %d (%v), the newest is %d; end of the output of %s:\n%s",
		time.Now().Format("15:04:05.000"), oldest, err, w.truth.newest(), from.name, strings.Join(said[max(0, len(said)-25):], "\n"))
}

// resume returns the revision to resume at: the watcher's last one, or sometimes a much older one, as of a client that
// was offline.
func (w *watcher) resume() int64 {
	at := w.parts[len(w.parts)-1].Resume()
	if w.random.IntN(4) == 0 {
		at = max(w.cluster.defined, at-w.random.Int64N(300))
	}
	return at
}

// stream reads one watch and reports whether it ended with an Expired error.
func (w *watcher) stream(ctx context.Context, part *part, replica *replica, query string) (expired bool) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	url := fmt.Sprintf("%s%s?watch=1&allowWatchBookmarks=true&timeoutSeconds=%d%s%s", replica.url, w.of.collection, 2+w.random.IntN(4), query, w.filter.query())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	resp, err := w.cluster.replicas[0].client.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return resp.StatusCode == http.StatusGone
	}
	part.alike = func(kind watchtest.Type, o object) {
		// If an object no longer matches, the event has the object's old content and the new revision.
		if kind != watchtest.Deleted || w.filter.group == "" {
			w.alike(w.of, replica, o)
		}
	}
	part.from = replica
	expired, err = part.read(resp.Body, w.goal.Load)
	if err != nil && !replica.stock { // verify judges errors of kube-apiserver, which may split a revision
		w.fail("%v at %s: %w", w, replica.name, err)
	}
	return expired
}

// part is one watch. Its events are checked by revision.
type part struct {
	*watchtest.Checker
	events  int
	message string                       // of the ERROR event
	pending []watchtest.Report           // of one revision, which may be incomplete
	from    *replica                     // nil for recordings
	alike   func(watchtest.Type, object) // receives every object, unless nil
}

// read records frames until the stream ends or has reached goal. A complete response must not end within a revision. A
// broken stream may, because the client discards the incomplete revision.
func (p *part) read(from io.Reader, goal func() int64) (expired bool, err error) {
	for frames := json.NewDecoder(from); ; {
		var frame struct {
			Type   watchtest.Type
			Object object
		}
		if err := frames.Decode(&frame); err == io.EOF && !p.splits() {
			return expired, p.flush()
		} else if err == io.EOF {
			return expired, nil
		} else if err != nil {
			if syntax := new(json.SyntaxError); expired || errors.As(err, &syntax) {
				return expired, fmt.Errorf("W3 Reliable: %w", err)
			}
			return false, nil
		}
		if expired {
			return true, fmt.Errorf("W3 Reliable: %v follows an error", frame)
		}
		if frame.Type == "ERROR" {
			expired, p.message = frame.Object.Code == http.StatusGone, frame.Object.Message
			continue
		}
		if p.alike != nil && frame.Type != watchtest.Bookmark {
			p.alike(frame.Type, frame.Object)
		}
		if err := p.observe(reportOf(frame.Type, frame.Object)); err != nil {
			return false, err
		}
		if end := goal(); end != 0 && p.newest() >= end {
			return false, p.flush()
		}
	}
}

// splits reports whether a complete response may end within a revision.
func (p *part) splits() bool { return p.from != nil && p.from.stock }

// verify compares the part with the history. kube-apiserver may split a revision that changed several objects: it may
// send a bookmark within the revision, or begin there.
func (p *part) verify(past *past) (broken []error) {
	err := p.Verify(&past.history, 0)
	if err == nil {
		return nil
	}
	for _, violation := range err.(interface{ Unwrap() []error }).Unwrap() {
		if found := revisionIn.FindStringSubmatch(violation.Error()); p.splits() && found != nil {
			if at, err := strconv.ParseInt(found[1], 10, 64); err == nil && past.changes(at) > 1 {
				continue
			}
		}
		broken = append(broken, fmt.Errorf("at %s: %w", p.from.name, violation))
	}
	return broken
}

// revisionIn matches the revision of a violation.
var revisionIn = regexp.MustCompile(`@(\d+) `)

// newest returns the revision up to which the watch has received everything. Until the end of the initial events it is
// 0, because these are sorted by name.
func (p *part) newest() int64 {
	resume := p.Resume()
	if n := len(p.pending); n > 0 && resume != 0 {
		return p.pending[n-1].Revision
	}
	return resume
}

func (p *part) observe(r watchtest.Report) error {
	p.events++
	mark := r.Type == watchtest.Bookmark || r.Type == watchtest.InitialEnd
	var err error
	if mark || len(p.pending) > 0 && p.pending[0].Revision != r.Revision {
		err = p.flush()
	}
	p.pending = append(p.pending, r)
	if mark {
		err = p.flush()
	}
	return err
}

func (p *part) flush() error {
	err := p.Observe(p.pending...)
	p.pending = nil
	return err
}

func reportOf(kind watchtest.Type, o object) watchtest.Report {
	r := watchtest.Report{Type: kind, Key: o.Metadata.Name, Revision: o.Metadata.revision()}
	if kind != watchtest.Bookmark {
		p, _ := readPayload(o.text())
		r.Digest = p.String()
	} else if o.Metadata.Annotations["k8s.io/initial-events-end"] == "true" {
		r.Type = watchtest.InitialEnd
	}
	return r
}

// verify compares all received events with the history: W.
func (w *watcher) verify(p *past) (broken []error) {
	for _, part := range w.parts {
		for _, err := range part.verify(p) {
			broken = append(broken, fmt.Errorf("%v %w", w, err))
		}
	}
	if !w.reached() {
		broken = append(broken, fmt.Errorf("W3 Reliable: %v did not receive revision %d", w, w.goal.Load()))
	}
	return broken
}
