package apimetrics

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/endpoints/metrics"
)

// writeShapes lists the writes that are counted here: verb and scope, upstream's label for the verb,
// and the status code of nearly all answers.
var writeShapes = [...]struct {
	verb, scope, reported string
	code                  int
	status                string // code
}{
	{"create", "resource", "POST", 201, "201"},
	{"update", "resource", "PUT", 200, "200"},
	{"patch", "resource", "PATCH", 200, "200"},
	{"apply", "resource", "APPLY", 200, "200"},
	{"delete", "resource", "DELETE", 200, "200"},
	{"deletecollection", "namespace", "DELETE", 200, "200"},
	{"deletecollection", "cluster", "DELETE", 200, "200"},
}

// Write describes the answer to a write.
type Write struct {
	Verb, Scope string // the verb of an apply is "apply"
	Code        int
	Took        time.Duration
	Own         bool // this process sent the request
}

// writeTally counts the answers to writes of one shape.
type writeTally struct {
	nanos, own atomic.Int64
	durations  [len(durationBounds) + 1]atomic.Int64 // by bound, not cumulative
}

// writeTallies counts the writes of one resource, by shape. A tally is nil before the first write.
type writeTallies [len(writeShapes)]atomic.Pointer[writeTally]

// ObserveWrite counts a write. The write must not have waited for a queue or a webhook, nor have a
// parameter that is a label of upstream's metrics. ObserveWrite returns false and counts nothing if
// the caller has to report the write to upstream's metrics instead: answers with an unusual code, and
// the first write of each shape, which makes upstream's metrics create their series.
func (all *Monitors) ObserveWrite(w Write) bool {
	if all == nil {
		return false
	}
	for i := range writeShapes {
		shape := &writeShapes[i]
		if shape.verb != w.Verb || shape.scope != w.Scope || shape.code != w.Code {
			continue
		}
		t := all.writes[i].Load()
		if t == nil {
			all.writes[i].CompareAndSwap(nil, new(writeTally))
			return false
		}
		t.nanos.Add(int64(w.Took))
		t.durations[bucketOf(durationBounds[:], w.Took.Seconds())].Add(1)
		if w.Own {
			t.own.Add(1)
		}
		return true
	}
	return false
}

// reset forgets what was counted.
func (all *writeTallies) reset() {
	for i := range all {
		all[i].Store(nil)
	}
}

// collectWrites reports the writes that all counts.
func (c *collector) collectWrites(ch chan<- prometheus.Metric, all *Monitors) {
	gvr, own := all.gvr, make(map[string]int64)
	for i := range all.writes {
		t := all.writes[i].Load()
		if t == nil {
			continue
		}
		own[writeShapes[i].reported] += t.own.Load()
		took, total := buckets(durationBounds[:], durationBounds[:], t.durations[:])
		if total == 0 {
			continue
		}
		shape := []string{writeShapes[i].reported, gvr.Group, gvr.Version, gvr.Resource, all.subresource, writeShapes[i].scope, metrics.APIServerComponent}
		dry, spent := append([]string{""}, shape...), seconds(t.nanos.Load())
		ch <- prometheus.MustNewConstMetric(c.requests, prometheus.CounterValue, float64(total), append([]string{writeShapes[i].status}, dry...)...)
		ch <- prometheus.MustNewConstHistogram(c.durations, total, spent, took, dry...)
		took, _ = buckets(durationBounds[2:], durationBounds[:], t.durations[:])
		ch <- prometheus.MustNewConstHistogram(c.indicators, total, spent, took, shape...)
	}
	for verb, n := range own {
		if n > 0 {
			ch <- prometheus.MustNewConstMetric(c.own, prometheus.CounterValue, float64(n), verb, gvr.Group, gvr.Resource, all.subresource)
		}
	}
}
