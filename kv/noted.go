package kv

import "strings"

const (
	// maxNoted limits the prefixes in Tail.noted, notedDepth the path segments that they have below the
	// Tail's prefix.
	maxNoted   = 16 << 10
	notedDepth = 2
)

// noteLocked records the revision of a change that no present subscription has received. An owner may later subscribe
// to a prefix of the key.
func (t *Tail) noteLocked(key string, revision int64) {
	if t.config.Replay <= 0 {
		return
	}
	for i, depth := len(t.config.Prefix), 0; i < len(key) && depth < notedDepth; i++ {
		if key[i] != '/' {
			continue
		}
		depth++
		if _, there := t.noted[key[:i+1]]; !there && len(t.noted) == maxNoted {
			clear(t.noted)
			t.notedFrom = revision
		}
		t.noted[key[:i+1]] = revision
	}
}

// noteClosedLocked records that a subscription has received the changes below its prefix, and is closed.
func (t *Tail) noteClosedLocked(prefix string) {
	revision := t.seen.Load()
	t.noteLocked(prefix, revision)
	if t.depth(prefix) < notedDepth { // changes of longer prefixes are not in noted
		t.notedFrom = revision
	}
}

// depth returns the number of path segments that a prefix has below the Tail's prefix.
func (t *Tail) depth(prefix string) int { return strings.Count(prefix[len(t.config.Prefix):], "/") }

// unchangedLocked reports whether the Tail knows that nothing changed below the prefix of s between after and s.since.
// The Tail must have followed the store since after. It knows this only if s is the only subscription to its prefix,
// and has missed nothing since it was made. s.mu is held, too.
func (t *Tail) unchangedLocked(s *Subscription, after int64) bool {
	depth := t.depth(s.prefix)
	return s.since == s.made && len(t.subs[s.prefix]) == 1 && 0 < depth && depth <= notedDepth &&
		after >= t.notedFrom && after >= t.noted[s.prefix]
}
