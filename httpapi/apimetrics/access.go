package apimetrics

import (
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// Access counts authentications, authorizations and the time of requests in filters. Its metrics have the
// names of upstream's (apiserver pkg/endpoints/filters/metrics.go), which only upstream's filters can
// count. Authentications that are reused count with a duration of zero.
type Access struct {
	users           [len(userClasses)]atomic.Int64 // authenticated requests, by class of the user
	tokens          *histogram                     // reused authentications by token
	authentications [lastResult]*histogram
	authorizations  [lastResult]*histogram
	filters         [3]*histogram // of the filters in Filtered
}

// NewAccess returns an Access that has counted nothing.
func NewAccess() *Access {
	a := &Access{tokens: newDurations(prometheus.DefBuckets)}
	for i := range lastResult {
		a.authentications[i], a.authorizations[i] = newDurations(allBounds), newDurations(allBounds)
	}
	for i := range a.filters {
		a.filters[i] = newDurations(allBounds)
	}
	return a
}

// ImpersonationFilter returns the name of the filter for impersonation in metrics and spans. The feature
// gate ConstrainedImpersonation decides which filter upstream has.
func ImpersonationFilter() string {
	if utilfeature.DefaultFeatureGate.Enabled(features.ConstrainedImpersonation) {
		return "constrainedimpersonation"
	}
	return "impersonation"
}

// UserClass is the class of a user name, which is the label of upstream's metric: an index of userClasses.
type UserClass uint8

const (
	classOther UserClass = iota
	classEmail
	firstNamed // the others have the name of their one user
)

var userClasses = [...]string{"other", "email_id", "admin", "client", "kube_proxy", "kubelet", "system:serviceaccount:kube-system:default"}

// ClassOf returns the class of a user name.
func ClassOf(user string) UserClass {
	if named := slices.Index(userClasses[firstNamed:], user); named >= 0 {
		return firstNamed + UserClass(named)
	}
	if strings.Contains(user, "@") {
		return classEmail
	}
	return classOther
}

// The results of authentication and authorization.
const (
	resultSuccess = iota // or allowed
	resultFailure        // or denied
	resultError
	resultNoOpinion
	lastResult
)

// The bounds of upstream's buckets: for authentication and authorization, for filters, and all of
// both.
var (
	accessBounds = []float64{0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384}
	filterBounds = []float64{0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 5, 10, 15, 30}
	allBounds    = []float64{
		0.0001, 0.0003, 0.001, 0.002, 0.003, 0.004, 0.008, 0.01, 0.016, 0.03, 0.032, 0.064, 0.1, 0.128, 0.256, 0.3, 0.512,
		1, 1.024, 2.048, 4.096, 5, 8.192, 10, 15, 16.384, 30,
	}
)

// Remembered counts a request whose credentials were accepted before. token says that they are a token.
func (a *Access) Remembered(class UserClass, token bool) {
	a.users[class].Add(1)
	a.authentications[resultSuccess].add(0)
	if token {
		a.tokens.add(0)
	}
}

// Authenticated counts one authentication.
func (a *Access) Authenticated(resp *authenticator.Response, ok bool, err error, took time.Duration) {
	switch {
	case err != nil:
		a.authentications[resultError].add(int64(took))
	case !ok:
		a.authentications[resultFailure].add(int64(took))
	default:
		a.users[ClassOf(resp.User.GetName())].Add(1)
		a.authentications[resultSuccess].add(int64(took))
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
	a.authorizations[result].add(int64(took))
}

// Filtered counts a request that has passed the first filters after authentication: those for audit, impersonation
// and flow control. It spent this time in each.
func (a *Access) Filtered(took ...time.Duration) {
	for f, t := range took {
		a.filters[f].add(int64(t))
	}
}

// Reset sets all counts to zero.
func (a *Access) Reset() {
	for c := range a.users {
		a.users[c].Store(0)
	}
	a.tokens.reset()
	for _, h := range slices.Concat(a.authentications[:], a.authorizations[:], a.filters[:]) {
		h.reset()
	}
}

// Describe implements prometheus.Collector: Access is not checked.
func (a *Access) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector. Like upstream's metrics, it has no samples with the value 0.
func (a *Access) Collect(ch chan<- prometheus.Metric) {
	send := func(name, help, label, value string, n int64) {
		if n > 0 {
			ch <- prometheus.MustNewConstMetric(accessDesc(name, help, label), prometheus.CounterValue, float64(n), value)
		}
	}
	for class, label := range userClasses {
		send("authenticated_user_requests", "Counter of authenticated requests broken out by username.", "username", label, a.users[class].Load())
	}
	for result, label := range [lastResult]string{"success", "failure", "error", ""} {
		total := a.authentications[result].report(ch, accessDesc("authentication_duration_seconds", "Authentication duration in seconds broken out by result.", "result"), accessBounds, label)
		send("authentication_attempts", "Counter of authenticated attempts.", "result", label, int64(total))
	}
	for result, label := range [lastResult]string{"allowed", "denied", "error", "no-opinion"} {
		total := a.authorizations[result].report(ch, accessDesc("authorization_duration_seconds", "Authorization duration in seconds broken out by result.", "result"), accessBounds, label)
		send("authorization_attempts_total", "Counter of authorization attempts broken down by result. It can be either 'allowed', 'denied', 'no-opinion' or 'error'.", "result", label, int64(total))
	}
	a.collectFilters(ch)
	// Upstream's cache of tokens would have found these. It has missed the first request of each token.
	hits := a.tokens.report(ch, accessDesc("authentication_token_cache_request_duration_seconds", "", "status"), prometheus.DefBuckets, "hit")
	send("authentication_token_cache_request_total", "", "status", "hit", int64(hits))
}

func (a *Access) collectFilters(ch chan<- prometheus.Metric) {
	desc := accessDesc("apiserver_request_filter_duration_seconds", "Request filter latency distribution in seconds, for each filter type", "filter")
	authentications := newDurations(allBounds)
	for _, h := range a.authentications {
		authentications.merge(h)
	}
	authentications.report(ch, desc, filterBounds, "authentication")
	for f, label := range [len(a.filters)]string{"audit", ImpersonationFilter(), "priorityandfairness"} {
		a.filters[f].report(ch, desc, filterBounds, label)
	}
	a.authorizations[resultSuccess].report(ch, desc, filterBounds, "authorization")
}

// accessDesc describes a metric of upstream's with one label.
func accessDesc(name, help, label string) *prometheus.Desc {
	return prometheus.NewDesc(name, "[ALPHA] "+help, []string{label}, nil)
}
