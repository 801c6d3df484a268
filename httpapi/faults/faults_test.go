package faults

import (
	"strings"
	"testing"
)

func TestPatterns(t *testing.T) {
	for _, c := range []struct {
		pattern, s string
		want       bool
	}{
		{"", "anything", true},
		{"pods", "pods", true},
		{"pods", "pods/status", false},
		{"pods*", "pods/status", true},
		{"*.apps", "deployments.apps", true},
		{"a*b*c", "a/x/b/c", true},
		{"a*b*c", "a/x/c", false},
		{"ab*ba", "aba", false},
		{"!kubectl*", "kubectl/v1.36.3 (linux/amd64)", false},
		{"!kubectl*", "manager/v0.0.0", true},
	} {
		if got := matches(c.pattern, c.s); got != c.want {
			t.Errorf("%q has the pattern %q: %v", c.s, c.pattern, got)
		}
	}
}

func TestRulesHaveOneActionWithAKnownValue(t *testing.T) {
	for _, r := range []Rule{
		{Hold: HoldChanges}, {Hold: HoldEverything}, {Delay: "1ms"}, {End: EndExpired, After: 3}, {Stale: 2}, {StaleAt: 7},
		{Refuse: 409}, {Refuse: 504}, {Lose: LoseCut}, {Seed: 1, Skip: 1, Times: 2},
	} {
		if r.Name = "r"; r.Validate() != nil {
			t.Errorf("%+v: %v", r, r.Validate())
		}
	}
	for _, c := range []struct {
		rule Rule
		want string
	}{
		{Rule{Hold: HoldChanges}, "not a name"},
		{Rule{Name: "a/b", Hold: HoldChanges}, "not a name"},
		{Rule{Name: "r"}, "one action, has 0"},
		{Rule{Name: "r", Refuse: 409, Lose: LoseCut}, "one action, has 2"},
		{Rule{Name: "r", Refuse: 418}, "unknown value"},
		{Rule{Name: "r", Delay: "soon"}, "unknown value"},
		{Rule{Name: "r", Stale: 1, StaleAt: 1}, "unknown value"},
		{Rule{Name: "r", Seed: 1, Skip: -1}, "negative"},
	} {
		if err := c.rule.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.rule, err, c.want)
		}
	}
}
