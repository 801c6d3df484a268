package watch

import "github.com/larder-io/larder/cache"

// ErrClosed is what Watch returns when Run has ended.
var ErrClosed = errClosed

// WithBacklog returns the Config with another backlog.
func (c Config) WithBacklog(n int) Config {
	c.backlog = n
	return c
}

// Step lets the Hub publish one read of the Log, in place of Run.
func (h *Hub) Step() bool { return h.step() }

// Stop ends the Hub as the end of Run does.
func (h *Hub) Stop() { h.close() }

// State names where the Watcher reads.
func (w *Watcher) State() string {
	return [...]string{"", "replaying", "catching up", "live", "closed"}[w.state]
}

// Published is the position up to which the Hub has published.
func (h *Hub) Published() cache.Position { return cache.Position(h.donePosition.Load()) }

// Publish publishes events that were read from the Log, as Step does.
func (h *Hub) Publish(events []*cache.Event) { h.publish(events) }

// Effort is how many groups and watchers the last step looked at.
func (h *Hub) Effort() int { return h.effort }
