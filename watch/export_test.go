package watch

import "github.com/larder-io/larder/cache"

// ErrClosed is the error of Watch after Run has ended.
var ErrClosed = errClosed

// WithBacklog returns the Config with another backlog.
func (c Config) WithBacklog(n int) Config {
	c.backlog = n
	return c
}

// Step makes the Hub publish one read of the Log, instead of Run.
func (h *Hub) Step() bool { return h.step() }

// Stop ends the Hub like the end of Run.
func (h *Hub) Stop() { h.close() }

// State returns the name of the source that the Watcher reads from.
func (w *Watcher) State() string {
	return [...]string{"", "replaying", "catching up", "live", "closed"}[w.state]
}

// Published returns the position up to which the Hub has published.
func (h *Hub) Published() cache.Position { return cache.Position(h.donePosition.Load()) }

// Publish publishes events that were read from the Log, like Step.
func (h *Hub) Publish(events []*cache.Event) { h.publish(events) }

// Examined returns the number of groups that the Hub examines for an event.
func (h *Hub) Examined(e *cache.Event) (groups int) {
	h.router.visitCandidates(e, func(*group) { groups++ })
	return groups
}

// Routes returns the number of keys and shards by which the Hub finds groups.
func (h *Hub) Routes() int {
	n := len(h.router.groups) + len(h.router.triggers)
	for _, t := range h.router.shards {
		if t != nil {
			n++
		}
	}
	return n
}
