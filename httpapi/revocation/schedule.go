package revocation

import (
	"crypto/sha256"
	"time"
)

// onNodes stands among the resources that credentials are tied to, but is none: it changes when
// authority.nodes does. Credentials of nodes that watch single objects are tied to it.
const onNodes = ""

// alarmAhead is how far ahead alarms are set at most. The alarm of a client that has left is
// kept no longer than that, and every credential is looked at once in that time.
const alarmAhead = time.Minute

// schedule says which credentials a round looks at: those that a change concerns, and all of them
// only if a counter has changed that all rest on. Its fields are guarded by table.mu.
type schedule struct {
	next   map[*credential]struct{}            // to be looked at in the next round
	tied   map[string]map[*credential]struct{} // by the resource, or onNodes, whose change concerns them
	alarms map[int64][][sha256.Size]byte       // keys of credentials, by the second of the alarm
	passed int64                               // the last second whose alarms were looked at

	// What the last round saw.
	seen  counters
	whole bool // there was one, and it looked at all credentials
	tides map[string]cachePosition
}

func newSchedule() schedule {
	return schedule{
		next: make(map[*credential]struct{}), tied: make(map[string]map[*credential]struct{}),
		alarms: make(map[int64][][sha256.Size]byte), tides: make(map[string]cachePosition),
	}
}

// tie has c looked at when on changes.
func (a *schedule) tie(c *credential, on string) {
	of := a.tied[on]
	if of == nil {
		of = make(map[*credential]struct{})
		a.tied[on] = of
	}
	of[c] = struct{}{}
}

// enter has c looked at in the next round, and whenever what it is tied to changes.
func (a *schedule) enter(c *credential) {
	a.next[c] = struct{}{}
	for _, name := range c.ties.Objects {
		a.tie(c, name.Resource)
	}
}

// leave forgets c.
func (a *schedule) leave(c *credential) {
	delete(a.next, c)
	for on, of := range a.tied {
		if delete(of, c); len(of) == 0 {
			delete(a.tied, on)
		}
	}
}

// alarm has c looked at again at the given time, or alarmAhead from now if that comes first or
// no time is given: a credential expires, for example, without any change.
func (a *schedule) alarm(c *credential, now, at time.Time) {
	if ahead := now.Add(alarmAhead); at.IsZero() || at.After(ahead) {
		at = ahead
	}
	second := max(at.Unix(), a.passed)
	if c.alarm != 0 && c.alarm <= second {
		return
	}
	c.alarm = second
	a.alarms[second] = append(a.alarms[second], c.key)
}

// candidates returns the credentials of known that the round at m looks at.
func (a *schedule) candidates(m *state, known map[[sha256.Size]byte]*credential) (list []*credential) {
	before, whole := a.seen, a.whole
	a.seen, a.whole = m.counters, true
	moved := a.moved(m.objects)
	if before.authority.nodes != m.authority.nodes {
		moved = append(moved, onNodes)
		before.authority.nodes = m.authority.nodes
	}
	entered := a.next
	if len(entered) > 0 {
		a.next = make(map[*credential]struct{})
	}
	rung := a.rung(m.now.Unix(), known)
	if !whole || before != m.counters {
		list = make([]*credential, 0, len(known))
		for _, c := range known {
			list = append(list, c)
		}
		return list
	}
	for c := range entered {
		list = append(list, c)
	}
	for _, on := range moved {
		for c := range a.tied[on] {
			list = append(list, c)
		}
	}
	return append(list, rung...)
}

// moved returns the resources that credentials are tied to and that have changed.
func (a *schedule) moved(in objects) (moved []string) {
	for on := range a.tied {
		now, known := in.position(on)
		if !known {
			continue
		}
		if before, seen := a.tides[on]; !seen || before != now {
			a.tides[on] = now
			moved = append(moved, on)
		}
	}
	return moved
}

// rung returns those of known whose alarms have gone off.
func (a *schedule) rung(now int64, known map[[sha256.Size]byte]*credential) (rung []*credential) {
	if a.passed == 0 || now-a.passed > int64(alarmAhead/time.Second) {
		a.passed = now - int64(alarmAhead/time.Second) // no alarm is set for an earlier time
	}
	for ; a.passed <= now; a.passed++ {
		for _, key := range a.alarms[a.passed] {
			if c := known[key]; c != nil && c.alarm == a.passed {
				c.alarm = 0
				rung = append(rung, c)
			}
		}
		delete(a.alarms, a.passed)
	}
	a.passed = now
	return rung
}
