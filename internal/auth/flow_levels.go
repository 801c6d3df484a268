package auth

import (
	"maps"
	"slices"
)

// FlowLevel is the state of a priority level.
type FlowLevel struct {
	Name       string `json:"name"`
	Exempt     bool   `json:"exempt"`
	Seats      int    `json:"seats"`      // the limit, unless the level is exempt
	Taken      int    `json:"taken"`      // seats
	Executing  int    `json:"executing"`  // requests that hold a seat
	Waiting    int    `json:"waiting"`    // requests in queues
	Dispatched int    `json:"dispatched"` // requests that were given seats, since the start
	Rejected   int64  `json:"rejected"`   // requests, since the start
}

// Levels returns all priority levels, by name.
func (f *Flow) Levels() []FlowLevel {
	f.mu.Lock()
	rejected, queueSets := make(map[string]int64), maps.Clone(f.queueSets)
	for _, class := range f.classes {
		rejected[class.Level] += class.rejected.Load()
	}
	f.mu.Unlock()
	levels := make([]FlowLevel, 0, len(queueSets))
	for _, name := range slices.Sorted(maps.Keys(queueSets)) {
		l := queueSets[name]
		dump := l.Dump(false)
		l.mu.Lock()
		limit := l.dispatch.ConcurrencyLimit
		l.mu.Unlock()
		levels = append(levels, FlowLevel{
			Name: name, Exempt: l.exempt, Seats: limit,
			Taken: dump.SeatsInUse, Executing: dump.Executing, Waiting: dump.Waiting,
			Dispatched: dump.Dispatched, Rejected: rejected[name],
		})
	}
	return levels
}
