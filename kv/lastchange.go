package kv

import "strings"

const (
	// maxLastChanges limits the prefixes in Tail.lastChange, and lastChangeDepth their path segments below the Tail's
	// prefix.
	maxLastChanges  = 16 << 10
	lastChangeDepth = 2
)

// recordChangeLocked records the revision of a change that no subscription has received. An owner may later subscribe
// to a prefix of the key.
func (t *Tail) recordChangeLocked(key string, revision int64) {
	if t.config.Replay <= 0 {
		return
	}
	for i, depth := len(t.config.Prefix), 0; i < len(key) && depth < lastChangeDepth; i++ {
		if key[i] != '/' {
			continue
		}
		depth++
		if _, there := t.lastChange[key[:i+1]]; !there && len(t.lastChange) == maxLastChanges {
			clear(t.lastChange)
			t.lastChangeFrom = revision
		}
		t.lastChange[key[:i+1]] = revision
	}
}

// recordCloseLocked records that a subscription, which has received the changes below its prefix, was closed.
func (t *Tail) recordCloseLocked(prefix string) {
	revision := t.seen.Load()
	t.recordChangeLocked(prefix, revision)
	if t.depth(prefix) < lastChangeDepth { // changes of longer prefixes are not in lastChange
		t.lastChangeFrom = revision
	}
}

// depth returns the number of path segments that a prefix has below the Tail's prefix.
func (t *Tail) depth(prefix string) int { return strings.Count(prefix[len(t.config.Prefix):], "/") }

// unchangedLocked reports whether the Tail knows that nothing changed below the prefix of s between after and s.since.
// The Tail must have followed the store since after, and s must be the only subscription to its prefix and have missed
// nothing. s.mu is held, too.
func (t *Tail) unchangedLocked(s *Subscription, after int64) bool {
	depth := t.depth(s.prefix)
	return s.since == s.subscribedAt && len(t.subs[s.prefix]) == 1 && 0 < depth && depth <= lastChangeDepth &&
		after >= t.lastChangeFrom && after >= t.lastChange[s.prefix]
}
