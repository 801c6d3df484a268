package kv

import "strings"

const (
	// maxNoted bounds the prefixes of which a Tail knows when something happened without a subscription,
	// and notedDepth the directories that they have below its own.
	maxNoted   = 16 << 10
	notedDepth = 2
)

// receiversLocked returns the subscriptions whose prefix a key has, which has changed. If there is none, it
// notes that something happened below the prefixes that may be subscribed to later.
func (t *Tail) receiversLocked(key string, revision int64) []*Subscription {
	subs := t.subscribedLocked(key)
	if subs == nil && t.replay > 0 {
		for i, depth := len(t.prefix), 0; i < len(key) && depth < notedDepth; i++ {
			if key[i] == '/' {
				t.noteLocked(key[:i+1], revision)
				depth++
			}
		}
	}
	return subs
}

// noteLocked remembers that something happened below a prefix, which no present subscription was told.
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

// quietLocked reports that nothing happened below the prefix of a subscription, after a revision that the Tail
// has followed from, until since. It knows that only of a subscription that is the only one of its prefix and has
// missed nothing since it was made. s.mu is held, too.
func (t *Tail) quietLocked(s *Subscription, after int64) bool {
	depth := strings.Count(s.prefix[len(t.prefix):], "/")
	return s.since == s.made && len(t.subs[s.prefix]) == 1 && 0 < depth && depth <= notedDepth &&
		after >= t.notedFrom && after >= t.noted[s.prefix]
}
