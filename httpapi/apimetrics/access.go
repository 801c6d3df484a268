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
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
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

	filters [lastFilter]spent        // of requests that took their time in one
	stopped [lastFilter]atomic.Int64 // requests that this filter let pass, and a later one did not
}

// Filter is a part of the serving chain whose duration upstream has a metric of.
type Filter uint8

// The filters between authentication and authorization, in the order of the chain.
const (
	FilterAudit Filter = iota
	FilterImpersonation
	FilterFlow
	lastFilter
)

// ImpersonationFilter returns the name of FilterImpersonation in metrics and spans. The feature
// gate ConstrainedImpersonation decides which filter upstream has.
func ImpersonationFilter() string {
	if utilfeature.DefaultFeatureGate.Enabled(features.ConstrainedImpersonation) {
		return "constrainedimpersonation"
	}
	return "impersonation"
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

// The bounds of upstream's buckets: of the durations of authentication and authorization; of those
// of filters; and all of them.
var (
	accessBounds = [...]float64{0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384}
	filterBounds = [...]float64{0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 5, 10, 15, 30}
	spentBounds  = [...]float64{
		0.0001, 0.0003, 0.001, 0.002, 0.003, 0.004, 0.008, 0.01, 0.016, 0.03, 0.032, 0.064, 0.1, 0.128, 0.256, 0.3, 0.512,
		1, 1.024, 2.048, 4.096, 5, 8.192, 10, 15, 16.384, 30,
	}
)

// spent counts how often something came to one result, and how long that took.
type spent struct {
	nanos  atomic.Int64
	counts [len(spentBounds) + 1]atomic.Int64 // by bound of spentBounds, not cumulative
}

func (s *spent) add(took time.Duration) {
	s.nanos.Add(int64(took))
	s.counts[bucketOf(spentBounds[:], took.Seconds())].Add(1)
}

// count is how often add was called.
func (s *spent) count() (n int64) {
	for i := range s.counts {
		n += s.counts[i].Load()
	}
	return n
}

func (s *spent) reset() {
	s.nanos.Store(0)
	for i := range s.counts {
		s.counts[i].Store(0)
	}
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

// Filtered counts the time that a request took in a filter. Only one that took any is counted so,
// right before or after it is counted as authorized or stopped: whatever passed a filter is known
// from that.
func (a *Access) Filtered(f Filter, took time.Duration) { a.filters[f].add(took) }

// Stopped counts a request that the filter behind f did not let pass.
func (a *Access) Stopped(f Filter) {
	for earlier := range f + 1 {
		a.stopped[earlier].Add(1)
	}
}

// Reset forgets what was counted.
func (a *Access) Reset() {
	a.tokens.Store(0)
	for c := range a.known {
		a.known[c].Store(0)
		a.users[c].Store(0)
	}
	for _, all := range [][]spent{a.authentications[:], a.authorizations[:], a.filters[:]} {
		for i := range all {
			all[i].reset()
		}
	}
	for f := range a.stopped {
		a.stopped[f].Store(0)
	}
}

// accessCollector reports an access. It is immutable.
type accessCollector struct {
	access *Access

	users, attempts, authentication *prometheus.Desc
	decisions, authorization        *prometheus.Desc
	filters                         *prometheus.Desc
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
		filters:        desc("apiserver_request_filter_duration_seconds", "Request filter latency distribution in seconds, for each filter type", "filter"),
	}
}

// Describe implements prometheus.Collector.
func (c *accessCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.users, c.attempts, c.authentication, c.decisions, c.authorization, c.filters} {
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
	c.collectFilters(ch, known)
}

// collect reports s and what took no time.
func (s *spent) collect(ch chan<- prometheus.Metric, counter, histogram *prometheus.Desc, label string, quick int64) {
	total := s.report(ch, histogram, accessBounds[:], label, quick)
	if total > 0 {
		ch <- prometheus.MustNewConstMetric(counter, prometheus.CounterValue, float64(total), label)
	}
}

// report reports s and what took no time as a histogram, and returns its count.
func (s *spent) report(ch chan<- prometheus.Metric, histogram *prometheus.Desc, bounds []float64, label string, quick int64) uint64 {
	made, total := buckets(bounds, spentBounds[:], s.counts[:])
	for bound := range made {
		made[bound] += uint64(quick)
	}
	total += uint64(quick)
	if total > 0 {
		ch <- prometheus.MustNewConstHistogram(histogram, total, seconds(s.nanos.Load()), made, label)
	}
	return total
}

// collectFilters reports the filters. Of a request that took no time in one it is known that it
// passed, because it was authorized or stopped later.
func (c *accessCollector) collectFilters(ch chan<- prometheus.Metric, known int64) {
	a := c.access
	authentication := sumOf(&a.authentications)
	authentication.report(ch, c.filters, filterBounds[:], "authentication", known)
	asked := int64(0)
	for i := range a.authorizations {
		asked += a.authorizations[i].count()
	}
	for f, label := range [lastFilter]string{"audit", ImpersonationFilter(), "priorityandfairness"} {
		passed := asked + a.stopped[f].Load()
		a.filters[f].report(ch, c.filters, filterBounds[:], label, max(passed-a.filters[f].count(), 0))
	}
	a.authorizations[resultSuccess].report(ch, c.filters, filterBounds[:], "authorization", 0)
}

// sumOf returns all of them as one.
func sumOf(all *[lastResult]spent) *spent {
	total := new(spent)
	for i := range all {
		total.nanos.Add(all[i].nanos.Load())
		for j := range all[i].counts {
			total.counts[j].Add(all[i].counts[j].Load())
		}
	}
	return total
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
