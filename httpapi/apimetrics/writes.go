package apimetrics

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/endpoints/metrics"
)

// writeKinds lists the writes that are counted here: verb and scope, upstream's label for the verb,
// and the usual status code.
var writeKinds = [...]struct {
	verb, scope, reported string
	code                  int
}{
	{"create", "resource", "POST", 201},
	{"update", "resource", "PUT", 200},
	{"patch", "resource", "PATCH", 200},
	{"apply", "resource", "APPLY", 200},
	{"delete", "resource", "DELETE", 200},
	{"deletecollection", "namespace", "DELETE", 200},
	{"deletecollection", "cluster", "DELETE", 200},
}

// Write describes the answer to a write.
type Write struct {
	Verb, Scope string // the verb of an apply is "apply"
	Code        int
	Took        time.Duration
	Own         bool // this process sent the request
}

// writeCounts counts the answers to writes of one kind.
type writeCounts struct {
	durations *histogram
	own       atomic.Int64
}

// ObserveWrite counts a write that has not waited for a queue or a webhook, and has no parameter that is a
// label of upstream's metrics. It returns false and counts nothing if the caller must report the write
// to upstream's metrics: for an unusual code, and for the first write of each kind, which creates
// upstream's series.
func (all *Monitors) ObserveWrite(w Write) bool {
	if all == nil {
		return false
	}
	for i := range writeKinds {
		kind := &writeKinds[i]
		if kind.verb != w.Verb || kind.scope != w.Scope || kind.code != w.Code {
			continue
		}
		counts := all.writes[i].Load()
		if counts == nil {
			all.writes[i].CompareAndSwap(nil, &writeCounts{durations: newDurations(durationBounds)})
			return false
		}
		counts.durations.add(int64(w.Took))
		if w.Own {
			counts.own.Add(1)
		}
		return true
	}
	return false
}

// collectWrites reports the writes that all counts.
func (c *collector) collectWrites(ch chan<- prometheus.Metric, all *Monitors) {
	gvr, own := all.gvr, make(map[string]int64)
	for i := range all.writes {
		if counts := all.writes[i].Load(); counts != nil {
			kind := &writeKinds[i]
			own[kind.reported] += counts.own.Load()
			c.collectAnswers(ch, counts.durations, strconv.Itoa(kind.code), true,
				[]string{kind.reported, gvr.Group, gvr.Version, gvr.Resource, all.subresource, kind.scope, metrics.APIServerComponent})
		}
	}
	for verb, n := range own {
		if n > 0 {
			ch <- prometheus.MustNewConstMetric(c.own, prometheus.CounterValue, float64(n), verb, gvr.Group, gvr.Resource, all.subresource)
		}
	}
}
