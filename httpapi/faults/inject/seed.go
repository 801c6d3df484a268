package inject

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/larder-io/larder/httpapi/faults"
)

// draw is the decision of a seed about one request.
type draw struct {
	ordinal int
	chance  uint64 // the hash
}

// decideLocked counts q and returns the decision of r's seed about it; false if the seed injects nothing into q.
func (f *Faults) decideLocked(r *rule, q faults.Request) (draw, bool) {
	resource, _, _ := strings.Cut(q.Resource, "/")
	switch {
	case resource == "events", resource == "events.events.k8s.io", resource == "leases.coordination.k8s.io",
		strings.HasSuffix(resource, "reviews.authorization.k8s.io"), strings.HasSuffix(resource, "reviews.authentication.k8s.io"):
		return draw{}, false
	}
	text := fmt.Sprintf("%q %q %q %q %q %q ", q.UserAgent, q.User, q.Verb, q.Resource, q.Namespace, q.Name)
	kind := xxhash.Sum64String(text)
	ordinal, known := r.ordinals[kind]
	if !known {
		if f.counted == maxCounted {
			return draw{}, false
		}
		f.counted++
	}
	r.ordinals[kind] = ordinal + 1
	if _, concerned := r.countLocked(); !concerned {
		return draw{}, false
	}
	return draw{ordinal, xxhash.Sum64String(text + strconv.Itoa(ordinal))}, true
}

// random returns the random numbers of a request, or of one event of a watch.
func (r *rule) random(d draw, event int) *rand.Rand {
	return rand.New(rand.NewPCG(r.Seed+uint64(event)*0x9e3779b97f4a7c15, d.chance))
}

// applyDrawLocked adds the decision of r's seed to the plan.
func (p *RequestFaults) applyDrawLocked(r *rule, d draw) {
	random := r.random(d, 0)
	oneOf := func(actions ...faults.Rule) {
		p.applyLocked(effect{r, actions[random.IntN(len(actions))], d.ordinal})
	}
	cut, timeout, status := faults.Rule{Lose: faults.LoseCut}, faults.Rule{Lose: faults.LoseTimeout}, func(code int) faults.Rule { return faults.Rule{Refuse: code} }
	if isRead(p.request.Verb) && p.seed == nil {
		p.seed = r
	}
	switch verb := p.request.Verb; {
	case verb == "watch":
		if p.draws == nil {
			p.draws = make(map[*rule]draw)
		}
		p.draws[r] = d
		if random.IntN(16) == 0 {
			oneOf(status(429), status(500), status(503))
		}
	case verb == "get" || verb == "list":
		if random.IntN(16) == 0 {
			oneOf(status(429), status(500), status(503), status(504))
		} else if random.IntN(4) == 0 {
			p.applyLocked(effect{r, faults.Rule{Stale: 1 + random.IntN(5)}, d.ordinal})
		}
	case random.IntN(8) > 0:
	case verb == "update" || verb == "patch":
		oneOf(status(409), status(409), status(429), status(500), status(503), cut, timeout)
	default:
		oneOf(status(429), status(500), status(503), cut, timeout)
	}
}

// endOf returns how the seed of r ends a watch, and after how many changes; "" if it does not.
func (r *rule) endOf(d draw) (end string, after int) {
	random := r.random(d, 1)
	if random.IntN(2) == 0 {
		return "", 0
	}
	return []string{faults.EndClean, faults.EndBookmark, faults.EndReset, faults.EndExpired}[random.IntN(4)], 1 + random.IntN(8)
}

// delayOf returns how long the seed of r delays the n-th change of a watch, counted from 0.
func (r *rule) delayOf(d draw, n int) time.Duration {
	random := r.random(d, 2+n)
	if random.IntN(4) > 0 {
		return 0
	}
	return time.Duration(1+random.IntN(200)) * time.Millisecond
}
