package faults

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Path is where a server lists its State (GET) and deletes all rules (DELETE). Below it, PUT sets the rule of that
// name, DELETE deletes it, and POST to NAME/step?events=N and NAME/release let held requests and events continue.
const Path = "/larder/faults"

// Match selects requests. An empty field selects all. The strings are patterns, in which * matches any characters; a
// ! before a pattern negates it.
type Match struct {
	UserAgent string   `json:"userAgent,omitempty"`
	User      string   `json:"user,omitempty"`
	Verbs     []string `json:"verbs,omitempty"`    // as RBAC has them
	Resource  string   `json:"resource,omitempty"` // as pods, deployments.apps or pods/status
	Namespace string   `json:"namespace,omitempty"`
	Name      string   `json:"name,omitempty"` // in the path, or the one that a field selector names
}

// Values of Rule.Hold.
const (
	HoldChanges    = "changes"    // events after the initial objects
	HoldEverything = "everything" // these events and the initial objects
)

// Values of Rule.End: how a watch ends.
const (
	EndClean    = "clean"    // the response ends normally, without a bookmark at the end
	EndBookmark = "bookmark" // the response ends normally, after a bookmark if the client allows bookmarks
	EndReset    = "reset"    // the connection or the HTTP/2 stream is reset
	EndExpired  = "expired"  // the last event is an ERROR with 410
)

// Values of Rule.Lose.
const (
	LoseCut     = "cut"     // the connection or the HTTP/2 stream is reset
	LoseTimeout = "timeout" // the response is 504
)

// MaxCount limits the numbers of a rule, and of events in a step.
const MaxCount = 1 << 30

// Rule is a match and one action: Hold, Delay, End, Stale or StaleAt, Refuse, Lose, or Seed.
type Rule struct {
	Name  string `json:"name"`
	Match Match  `json:"match"`
	// Skip is how many matching requests are left alone first; Times how many are concerned then,
	// 0 for all.
	Skip  int `json:"skip,omitempty"`
	Times int `json:"times,omitempty"`

	Hold  string `json:"hold,omitempty"`
	Delay string `json:"delay,omitempty"` // as time.ParseDuration reads it
	// End comes after the initial objects and as many changes as After says.
	End   string `json:"end,omitempty"`
	After int    `json:"after,omitempty"`
	// Stale is how many changes of the resource, in the request's namespace, a replica is behind. StaleAt is the
	// resourceVersion at which it stops.
	Stale   int   `json:"stale,omitempty"`
	StaleAt int64 `json:"staleAt,omitempty"`
	// Refuse is a status; RetryAfter the seconds in a header of 429 and 503, 1 if not set.
	Refuse     int    `json:"refuse,omitempty"`
	RetryAfter int    `json:"retryAfter,omitempty"`
	Lose       string `json:"lose,omitempty"`
	Seed       uint64 `json:"seed,omitempty"`
}

// Validate returns an error unless r has a name and one action with a known value.
func (r *Rule) Validate() error {
	delay, delayErr := time.ParseDuration(r.Delay)
	actions := 0
	for _, a := range []struct{ set, valid bool }{
		{r.Hold != "", r.Hold == HoldChanges || r.Hold == HoldEverything},
		{r.Delay != "", delayErr == nil && delay > 0},
		{r.End != "", slices.Contains([]string{EndClean, EndBookmark, EndReset, EndExpired}, r.End)},
		{r.Stale != 0 || r.StaleAt != 0, r.Stale >= 0 && r.StaleAt >= 0 && (r.Stale == 0 || r.StaleAt == 0)},
		{r.Refuse != 0, slices.Contains([]int{http.StatusConflict, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusServiceUnavailable, http.StatusGatewayTimeout}, r.Refuse)},
		{r.Lose != "", r.Lose == LoseCut || r.Lose == LoseTimeout},
		{r.Seed != 0, true},
	} {
		if !a.set {
			continue
		}
		if actions++; !a.valid {
			return fmt.Errorf("rule %q: its action has an unknown value", r.Name)
		}
	}
	switch {
	case r.Name == "" || len(r.Name) > 253 || strings.ContainsAny(r.Name, "/?#%"):
		return fmt.Errorf("rule %q: not a name", r.Name)
	case actions != 1:
		return fmt.Errorf("rule %q: it must have one action, has %d", r.Name, actions)
	case min(r.Skip, r.Times, r.After, r.RetryAfter) < 0 || max(r.Skip, r.Times, r.After, r.RetryAfter, r.Stale) > MaxCount:
		return fmt.Errorf("rule %q: a number is negative or above %d", r.Name, MaxCount)
	}
	return nil
}

// Request is the part of a request that matches examine.
type Request struct {
	UserAgent string `json:"userAgent"`
	User      string `json:"user"`
	Verb      string `json:"verb"`
	Resource  string `json:"resource"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

// Selects reports whether m selects q.
func (m *Match) Selects(q *Request) bool {
	return (len(m.Verbs) == 0 || slices.Contains(m.Verbs, q.Verb)) &&
		matches(m.Resource, q.Resource) && matches(m.Namespace, q.Namespace) && matches(m.Name, q.Name) &&
		matches(m.UserAgent, q.UserAgent) && matches(m.User, q.User)
}

// matches reports whether s has the pattern.
func matches(pattern, s string) bool {
	if pattern == "" {
		return true
	}
	if reversed, ok := strings.CutPrefix(pattern, "!"); ok {
		return !matches(reversed, s)
	}
	parts := strings.Split(pattern, "*")
	s, ok := strings.CutPrefix(s, parts[0])
	if !ok || len(parts) == 1 {
		return ok && s == ""
	}
	last := len(parts) - 1
	for _, part := range parts[1:last] {
		at := strings.Index(s, part)
		if at < 0 {
			return false
		}
		s = s[at+len(part):]
	}
	return strings.HasSuffix(s, parts[last])
}

// State is the faults of a server: its rules, its watches and the injected faults.
type State struct {
	Rules    []Rule     `json:"rules"`
	Watches  []Watch    `json:"watches"`  // that are open, oldest first
	Injected []Injected `json:"injected"` // oldest first; only the last ten thousand
}

// Watch is an open watch.
type Watch struct {
	Request
	Sent  int      `json:"sent"` // changes since a rule concerns it
	Held  int      `json:"held"` // events that are held or delayed now
	Rules []string `json:"rules,omitempty"`
}

// Injected is one fault that a client has met.
type Injected struct {
	Rule string `json:"rule"`
	Seed uint64 `json:"seed,omitempty"`
	Request
	// Ordinal is the number of earlier requests that Rule matched; with a Seed, only requests equal to Request count.
	Ordinal int    `json:"ordinal"`
	Fault   string `json:"fault"`
}

// String returns a line for a log.
func (i Injected) String() string {
	return fmt.Sprintf("%s: %s %s %s/%s #%d of %s (%s): %s", i.Rule, i.Verb, i.Resource, i.Namespace, i.Name, i.Ordinal, i.UserAgent, i.User, i.Fault)
}
