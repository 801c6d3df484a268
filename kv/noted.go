package kv

import "strings"

const (
	// maxNoted limits the prefixes in Tail.noted, notedDepth the path segments that they have below the
	// Tail's prefix.
	maxNoted   = 16 << 10
	notedDepth = 2
)

// receiversLocked returns the subscriptions that receive the change of a key. If there is none, it records the
// revision for the prefixes of the key, because an owner may subscribe to one of them later.
func (t *Tail) receiversLocked(key string, revision int64) []*Subscription {
	subs := t.subscribedLocked(key)
	if subs == nil && t.config.Replay > 0 {
		for i, depth := len(t.config.Prefix), 0; i < len(key) && depth < notedDepth; i++ {
			if key[i] == '/' {
				t.noteLocked(key[:i+1], revision)
				depth++
			}
		}
	}
	return subs
}

// noteLocked records the revision of a change below a prefix that no present subscription has received.
func (t *Tail) noteLocked(prefix string, revision int64) {
	if _, there := t.noted[prefix]; there {
		t.noted[prefix] = revision
		return
	}
	if len(t.noted) == maxNoted {
		clear(t.noted)
		t.notedFrom = revision
	}
	t.noted[strings.Clone(prefix)] = revision
}

// quietLocked reports whether the Tail knows that nothing changed below the prefix of s between after and s.since. The
// Tail must have followed the store since after. It knows this only if s is the only subscription to its prefix, and
// has missed nothing since it was made. s.mu is held, too.
func (t *Tail) quietLocked(s *Subscription, after int64) bool {
	depth := strings.Count(s.prefix[len(t.config.Prefix):], "/")
	return s.since == s.made && len(t.subs[s.prefix]) == 1 && 0 < depth && depth <= notedDepth &&
		after >= t.notedFrom && after >= t.noted[s.prefix]
}
