package table

import (
	"errors"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/kubernetes/pkg/apis/batch"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/resource"
)

// errVolatile says that a row cannot be cached, because the start of one of its ages is unknown.
var errVolatile = errors.New("table: row depends on time in an unknown way")

// age is a cell with the time since something happened.
type age struct {
	before, after string // around the duration
	since         time.Time
}

// agoEnd ends a cell with an age after other text.
const agoEnd = " ago)"

// sinceOf lists the times at which the age in a column may start; none if the cell has no age. It has all columns in
// which upstream's printers read the clock (kubernetes pkg/printers/internalversion/printers.go). TestRowsMatchUpstream
// fails if one is missing.
func sinceOf(obj runtime.Object, column, cell string) []time.Time {
	var since []time.Time
	switch o := obj.(type) {
	case *core.Pod:
		if column == "Restarts" && strings.HasSuffix(cell, agoEnd) {
			since = restartsOf(o)
		}
	case *core.Event:
		since = seen(o, column)
	case *batch.Job:
		if column == "Duration" && o.Status.StartTime != nil && o.Status.CompletionTime == nil {
			since = []time.Time{o.Status.StartTime.Time}
		}
	case *batch.CronJob:
		if column == "Last Schedule" && o.Status.LastScheduleTime != nil {
			since = []time.Time{o.Status.LastScheduleTime.Time}
		}
	case *resource.DeviceTaintRule:
		if column == "TimeAdded" && o.Spec.Taint.TimeAdded != nil {
			since = []time.Time{o.Spec.Taint.TimeAdded.Time}
		}
	case *resource.ResourcePoolStatusRequest:
		if column == "Completed" && o.Status != nil {
			for i := range o.Status.Conditions {
				since = append(since, o.Status.Conditions[i].LastTransitionTime.Time)
			}
		}
	}
	if column == "Age" || column == "" { // upstream does not declare the age of an IPAddress
		if accessor, err := meta.Accessor(obj); err == nil {
			since = []time.Time{accessor.GetCreationTimestamp().Time}
		}
	}
	return slices.DeleteFunc(since, time.Time.IsZero)
}

// seen lists the times at which an event may have been seen: upstream falls back from one to another.
func seen(e *core.Event, column string) []time.Time {
	first := e.FirstTimestamp.Time
	if first.IsZero() {
		first = e.EventTime.Time
	}
	switch {
	case column == "First Seen":
		return []time.Time{first}
	case column != "Last Seen":
		return nil
	case e.Series != nil:
		return []time.Time{e.Series.LastObservedTime.Time}
	case !e.LastTimestamp.IsZero():
		return []time.Time{e.LastTimestamp.Time}
	}
	return []time.Time{first}
}

// restartsOf lists the possible times of a pod's last restart. The state of the pod decides whether
// containers or init containers count.
func restartsOf(p *core.Pod) []time.Time {
	var all []time.Time
	for _, statuses := range [][]core.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		var last time.Time
		for i := range statuses {
			if ended := statuses[i].LastTerminationState.Terminated; ended != nil && ended.FinishedAt.After(last) {
				last = ended.FinishedAt.Time
			}
		}
		all = append(all, last)
	}
	return all
}

// findAge finds the age of one of since in a cell that was printed between begun and ended. ok is false
// unless exactly one of since fits.
func findAge(cell string, since []time.Time, begun, ended time.Time) (found age, ok bool) {
	for _, t := range since {
		for _, now := range []time.Time{begun, ended} {
			a, is := ageOf(cell, t, now)
			if !is {
				continue
			}
			if ok && !t.Equal(found.since) {
				return age{}, false
			}
			found, ok = a, true
		}
	}
	return found, ok
}

// ageOf splits a cell that has the age of since, alone or before " ago)".
func ageOf(cell string, since, now time.Time) (age, bool) {
	text := duration.HumanDuration(now.Sub(since))
	if cell == text {
		return age{since: since}, true
	}
	before, ok := strings.CutSuffix(cell, "("+text+agoEnd)
	return age{before + "(", agoEnd, since}, ok
}
