package consistency

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/larder-io/larder/watch/watchtest"
)

// watcher watches one filter, resuming at either replica, until it has seen goal.
type watcher struct {
	*client
	filter filter
	goal   *atomic.Int64 // 0 while more is to come

	parts      []*watchtest.Checker
	deliveries int
	expired    int
}

func (w *watcher) String() string { return fmt.Sprintf("watcher %d%s", w.id, w.filter.query()) }

func (w *watcher) selects(s *watchtest.State) bool { return w.filter.selects(s.Labels["g"], s.Key) }

// reached reports whether all was seen.
func (w *watcher) reached() bool {
	goal := w.goal.Load()
	return goal != 0 && len(w.parts) > 0 && w.parts[len(w.parts)-1].Resume() >= goal
}

func (w *watcher) run(ctx context.Context) {
	initial := true // with what exists
	for n := 0; !w.reached() && ctx.Err() == nil; n++ {
		asked := watchtest.Request{Selects: w.selects, Initial: initial}
		query := "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
		if !initial {
			asked.After, asked.Resumed = w.parts[len(w.parts)-1].Resume(), true
			query = fmt.Sprintf("&resourceVersion=%d", asked.After)
		}
		part := watchtest.NewChecker(asked)
		before := w.deliveries
		again := w.stream(ctx, part, query)
		switch {
		case again && (initial || asked.After >= w.compacted.Load()):
			w.fail("W5 Resumable: %v after %d: too old, and nothing from %d on was compacted", w, asked.After, w.compacted.Load())
			initial = true
		case again:
			w.expired++
			initial = true
		case w.deliveries > before:
			w.parts = append(w.parts, part)
			initial = initial && part.Resume() == 0
		}
		pause(ctx, 50*time.Millisecond)
	}
}

// stream reads one watch to its end and reports whether it ended for being too old.
func (w *watcher) stream(ctx context.Context, part *watchtest.Checker, query string) (expired bool) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	url := fmt.Sprintf("%s%s?watch=1&allowWatchBookmarks=true&timeoutSeconds=%d%s%s", w.replica().url, collection, 2+w.random.IntN(4), query, w.filter.query())
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
	for frames := json.NewDecoder(resp.Body); ; {
		var frame struct {
			Type   watchtest.Type
			Object object
		}
		if err := frames.Decode(&frame); err != nil {
			if syntax := new(json.SyntaxError); expired && !errors.Is(err, io.EOF) || errors.As(err, &syntax) {
				w.fail("W3 Reliable: %v: %v", w, err)
			}
			return expired
		}
		if expired {
			w.fail("W3 Reliable: %v: %v came after an error", w, frame)
		}
		if frame.Type == "ERROR" {
			expired = frame.Object.Code == http.StatusGone
			continue
		}
		if err := part.Observe(w.report(frame.Type, frame.Object)); err != nil {
			w.fail("%v: %w", w, err)
			return false
		}
		w.deliveries++
		if w.reached() {
			return false
		}
	}
}

func (w *watcher) report(kind watchtest.Type, o object) watchtest.Report {
	r := watchtest.Report{Type: kind, Key: o.Metadata.Name, Revision: o.Metadata.revision()}
	if kind != watchtest.Bookmark {
		p, _ := readPayload(o.Data["p"])
		r.Digest = p.String()
	} else if o.Metadata.Annotations["k8s.io/initial-events-end"] == "true" {
		r.Type = watchtest.InitialEnd
	}
	return r
}

// verify compares what was told with what happened: W.
func (w *watcher) verify(p *past) (broken []error) {
	for _, part := range w.parts {
		if err := part.Verify(&p.history, 0); err != nil {
			broken = append(broken, fmt.Errorf("%v: %w", w, err))
		}
	}
	if !w.reached() {
		broken = append(broken, fmt.Errorf("W3 Reliable: %v never saw %d", w, w.goal.Load()))
	}
	return broken
}
