package auth

import (
	"maps"
	"slices"
)

// FlowLevel is what a priority level does at a moment.
type FlowLevel struct {
	Name       string
	Exempt     bool
	Seats      int   // there are, unless it is exempt
	Taken      int   // seats
	Executing  int   // requests that hold a seat
	Waiting    int   // requests in queues
	Dispatched int   // requests that were given seats, since the start
	Rejected   int64 // requests, since the start
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
		level := FlowLevel{
			Name: name, Exempt: l.exempt, Seats: int(l.state.Load() & limitMask >> limitShift),
			Taken: dump.SeatsInUse, Executing: dump.Executing, Waiting: dump.Waiting,
			Dispatched: dump.Dispatched, Rejected: rejected[name],
		}
		levels = append(levels, level)
	}
	return levels
}
