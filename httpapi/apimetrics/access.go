package apimetrics

import (
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// Access counts what authentication and authorization come to, under the names of
// upstream's metrics (apiserver pkg/endpoints/filters/metrics.go), which only upstream's
// filters can count, which do not serve here. Whom a connection was taken for is counted
// without a look at the clock: it took less than the smallest bound.
type Access struct {
	known  [lastClass]atomic.Int64 // remembered, by class of the user
	tokens atomic.Int64            // of these, by a token

	users           [lastClass]atomic.Int64 // authenticated, not remembered
	authentications [lastResult]spent
	authorizations  [lastResult]spent
}

// UserClass is what upstream's metric tells of a user's name.
type UserClass uint8

const (
	classOther UserClass = iota
	classEmail
	classAdmin
	classClient
	classKubeProxy
	classKubelet
	classSystemDefault
	lastClass
)

// String is the label.
func (c UserClass) String() string {
	return [lastClass]string{
		"other", "email_id", "admin", "client", "kube_proxy", "kubelet", "system:serviceaccount:kube-system:default",
	}[c]
}

// ClassOf returns what upstream's metric tells of a user.
func ClassOf(user string) UserClass {
	for c := classAdmin; c < lastClass; c++ {
		if user == c.String() {
			return c
		}
	}
	if strings.Contains(user, "@") {
		return classEmail
	}
	return classOther
}

// The results of both, as indexes.
const (
	resultSuccess = iota // or allowed
	resultFailure        // or denied
	resultError
	resultNoOpinion
	lastResult
)

// accessBounds are upstream's: from 1 ms on, each twice the one before.
const accessBounds = 15

func accessBound(i int) float64 { return 0.001 * float64(int(1)<<i) }

// spent counts how often something came to one result, and how long that took.
type spent struct {
	nanos  atomic.Int64
	counts [accessBounds + 1]atomic.Int64 // by bound, not cumulative
}

func (s *spent) add(took time.Duration) {
	i := 0
	for i < accessBounds && took.Seconds() > accessBound(i) {
		i++
	}
	s.nanos.Add(int64(took))
	s.counts[i].Add(1)
}

// Remembered counts one who was known already, by a token or not.
func (a *Access) Remembered(class UserClass, token bool) {
	a.known[class].Add(1)
	if token {
		a.tokens.Add(1)
	}
}

// Authenticated counts one authentication.
func (a *Access) Authenticated(resp *authenticator.Response, ok bool, err error, took time.Duration) {
	switch {
	case err != nil:
		a.authentications[resultError].add(took)
	case !ok:
		a.authentications[resultFailure].add(took)
	default:
		a.users[ClassOf(resp.User.GetName())].Add(1)
		a.authentications[resultSuccess].add(took)
	}
}

// Authorized counts one authorization.
func (a *Access) Authorized(decision authorizer.Decision, err error, took time.Duration) {
	result := resultNoOpinion
	switch {
	case decision == authorizer.DecisionAllow:
		result = resultSuccess
	case err != nil:
		result = resultError
	case decision == authorizer.DecisionDeny:
		result = resultFailure
	}
	a.authorizations[result].add(took)
}

// Reset forgets what was counted.
func (a *Access) Reset() {
	a.tokens.Store(0)
	for c := range a.known {
		a.known[c].Store(0)
		a.users[c].Store(0)
	}
	for _, all := range [][]spent{a.authentications[:], a.authorizations[:]} {
		for i := range all {
			all[i].nanos.Store(0)
			for j := range all[i].counts {
				all[i].counts[j].Store(0)
			}
		}
	}
}

// accessCollector reports an access. It is immutable.
type accessCollector struct {
	access *Access

	users, attempts, authentication *prometheus.Desc
	decisions, authorization        *prometheus.Desc
}

// NewAccessCollector reports a.
func NewAccessCollector(a *Access) prometheus.Collector {
	desc := func(name, help, label string) *prometheus.Desc {
		return prometheus.NewDesc(name, "[ALPHA] "+help, []string{label}, nil)
	}
	return &accessCollector{
		access:         a,
		users:          desc("authenticated_user_requests", "Counter of authenticated requests broken out by username.", "username"),
		attempts:       desc("authentication_attempts", "Counter of authenticated attempts.", "result"),
		authentication: desc("authentication_duration_seconds", "Authentication duration in seconds broken out by result.", "result"),
		decisions:      desc("authorization_attempts_total", "Counter of authorization attempts broken down by result. It can be either 'allowed', 'denied', 'no-opinion' or 'error'.", "result"),
		authorization:  desc("authorization_duration_seconds", "Authorization duration in seconds broken out by result.", "result"),
	}
}

// Describe implements prometheus.Collector.
func (c *accessCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.users, c.attempts, c.authentication, c.decisions, c.authorization} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. What has not happened has no sample, as with
// upstream's.
func (c *accessCollector) Collect(ch chan<- prometheus.Metric) {
	a := c.access
	var known int64
	for class := range lastClass {
		remembered := a.known[class].Load()
		known += remembered
		if n := a.users[class].Load() + remembered; n > 0 {
			ch <- prometheus.MustNewConstMetric(c.users, prometheus.CounterValue, float64(n), class.String())
		}
	}
	for result, label := range [lastResult]string{"success", "failure", "error", ""} {
		quick := int64(0)
		if result == resultSuccess {
			quick = known
		}
		a.authentications[result].collect(ch, c.attempts, c.authentication, label, quick)
	}
	for result, label := range [lastResult]string{"allowed", "denied", "error", "no-opinion"} {
		a.authorizations[result].collect(ch, c.decisions, c.authorization, label, 0)
	}
}

// collect reports s and what took no time.
func (s *spent) collect(ch chan<- prometheus.Metric, counter, histogram *prometheus.Desc, label string, quick int64) {
	buckets, total := make(map[float64]uint64, accessBounds), uint64(quick)
	for i := range s.counts {
		total += uint64(s.counts[i].Load())
		if i < accessBounds {
			buckets[accessBound(i)] = total
		}
	}
	if total == 0 {
		return
	}
	ch <- prometheus.MustNewConstMetric(counter, prometheus.CounterValue, float64(total), label)
	ch <- prometheus.MustNewConstHistogram(histogram, total, time.Duration(s.nanos.Load()).Seconds(), buckets, label)
}

// withoutUpstream returns families without upstream's counters of the same.
func (*Access) withoutUpstream(families []*dto.MetricFamily) []*dto.MetricFamily {
	return slices.DeleteFunc(families, func(f *dto.MetricFamily) bool {
		switch f.GetName() {
		case "authenticated_user_requests", "authentication_attempts", "authentication_duration_seconds",
			"authorization_attempts_total", "authorization_duration_seconds":
			return true
		}
		return false
	})
}

// addTokens adds the tokens that were remembered to those that upstream's cache has found.
// It has missed the first of each.
func (a *Access) addTokens(families []*dto.MetricFamily) {
	found := uint64(a.tokens.Load())
	if found == 0 {
		return
	}
	for _, family := range families {
		switch family.GetName() {
		case "authentication_token_cache_request_total":
			c := hits(family).Counter
			value := c.GetValue() + float64(found)
			c.Value = &value
		case "authentication_token_cache_request_duration_seconds":
			h := hits(family).Histogram
			total := h.GetSampleCount() + found
			h.SampleCount = &total
			for _, bucket := range h.GetBucket() {
				count := bucket.GetCumulativeCount() + found
				bucket.CumulativeCount = &count
			}
		}
	}
}

// hits returns the sample of family that counts hits, which is made if there is none.
func hits(family *dto.MetricFamily) *dto.Metric {
	const label, hit = "status", "hit"
	at := slices.IndexFunc(family.GetMetric(), func(m *dto.Metric) bool {
		return slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetName() == label && l.GetValue() == hit })
	})
	if at >= 0 {
		return family.GetMetric()[at]
	}
	name, value, none, sum := label, hit, uint64(0), 0.0
	made := &dto.Metric{Label: []*dto.LabelPair{{Name: &name, Value: &value}}}
	if family.GetType() == dto.MetricType_COUNTER {
		made.Counter = &dto.Counter{Value: &sum}
	} else {
		made.Histogram = &dto.Histogram{SampleCount: &none, SampleSum: &sum}
		for _, bucket := range family.GetMetric()[0].GetHistogram().GetBucket() {
			made.Histogram.Bucket = append(made.Histogram.Bucket, &dto.Bucket{UpperBound: bucket.UpperBound, CumulativeCount: new(uint64)})
		}
	}
	family.Metric = append(family.Metric, made)
	return made
}
