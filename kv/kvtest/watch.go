package kvtest

import (
	"context"
	"strings"

	"github.com/larder-io/larder/kv"
)

// watcher is one open watch: a position in the store's log.
type watcher struct {
	prefix   string
	after    int64 // the requested revision
	position int64 // revision up to which the log was read
	// delivered is the last delivered progress.
	delivered int64
	progress  bool  // was requested
	err       error // to end with
	wake      chan struct{}
}

// Watch delivers every event under the prefix with a revision > after.
func (m *Memory) Watch(ctx context.Context, prefix string, after int64) <-chan kv.WatchResponse {
	out := make(chan kv.WatchResponse, 1)
	err := m.begin(ctx, "watch", prefix)
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-m.closing:
		err = m.failure("watch", prefix, kv.ErrClosed)
	default:
	}
	if err != nil {
		if ctx.Err() == nil {
			out <- kv.WatchResponse{Err: err}
		}
		close(out)
		return out
	}
	w := &watcher{prefix: prefix, after: after, position: after, delivered: after, wake: make(chan struct{}, 1)}
	m.watchers[w] = struct{}{}
	m.watches.Go(func() { m.follow(ctx, w, out) })
	return out
}

func (m *Memory) follow(ctx context.Context, w *watcher, out chan<- kv.WatchResponse) {
	defer close(out)
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.watchers, w)
	}()
	for {
		response, ok := m.next(w)
		if !ok {
			select {
			case <-w.wake:
				continue
			case <-ctx.Done():
				return
			case <-m.closing:
				select {
				case out <- kv.WatchResponse{Err: m.failure("watch", w.prefix, kv.ErrClosed)}:
				default:
				}
				return
			}
		}
		select {
		case out <- response:
		case <-ctx.Done():
			return
		case <-m.closing:
			return
		}
		if response.Err != nil {
			return
		}
	}
}

func (m *Memory) next(w *watcher) (kv.WatchResponse, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w.err != nil {
		return kv.WatchResponse{Err: m.failure("watch", w.prefix, w.err)}, true
	}
	if m.held {
		return kv.WatchResponse{}, false
	}
	if w.position+1 < m.compacted {
		return kv.WatchResponse{Err: m.failure("watch", w.prefix, kv.ErrCompacted)}, true
	}
	var response kv.WatchResponse
	for _, batch := range m.log {
		if batch.Revision <= w.position {
			continue
		}
		part := kv.Batch{Revision: batch.Revision}
		for _, event := range batch.Events {
			if strings.HasPrefix(event.Key, w.prefix) {
				part.Events = append(part.Events, event)
			}
		}
		if len(part.Events) > 0 {
			response.Batches = append(response.Batches, part)
			response.Progress = part.Revision
		}
	}
	w.position = max(w.position, m.revision)
	if len(response.Batches) > 0 {
		w.delivered = response.Progress
		m.shown = max(m.shown, w.delivered)
		return response, true
	}
	if w.progress && m.revision > w.after && m.revision >= w.delivered {
		w.progress = false
		w.delivered, response.Progress = m.revision, m.revision
		m.shown = max(m.shown, m.revision)
		return response, true
	}
	w.progress = false
	return response, false
}

// RequestProgress requests a progress response in every open watch.
func (m *Memory) RequestProgress(ctx context.Context) error {
	if err := m.begin(ctx, "progress", ""); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ignoreProgress || m.held {
		return nil
	}
	for w := range m.watchers {
		w.progress = true
	}
	m.wakeLocked()
	return nil
}

func (m *Memory) wakeLocked() {
	for w := range m.watchers {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}
