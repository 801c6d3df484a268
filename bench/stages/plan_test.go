package stages_test

import (
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/larder-io/larder/bench/stages"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func parse(t *testing.T, text string) stages.Plan {
	t.Helper()
	p, err := stages.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestDueTimesOfOperations checks when operations are due, at constant rates and in ramps.
func TestDueTimesOfOperations(t *testing.T) {
	p := parse(t, "10s:100/s, 10s:100..300/s,5s:300/s")
	if p.Operations() != 1000+2000+1500 || p.Length() != 25*time.Second || p.Most() != 300 || p.First() != 100 {
		t.Fatalf("%d operations in %v, highest level %g, first level %g", p.Operations(), p.Length(), p.Most(), p.First())
	}
	for i, want := range map[int]time.Duration{
		0: 0, 500: 5 * time.Second, 1000: 10 * time.Second, 3000: 20 * time.Second, 3300: 21 * time.Second,
		// At the middle of the ramp, 100*5 + 20*25/2 operations are due.
		1750: 15 * time.Second,
	} {
		if got := p.Due(i); (got - want).Abs() > time.Microsecond {
			t.Errorf("operation %d is due at %v, want %v", i, got, want)
		}
	}
	if got := parse(t, "10s:0..10/s").Due(0); got != 0 {
		t.Errorf("the first operation of a ramp from 0 is due at %v, want 0", got)
	}
}

// TestDueNeverGoesBack draws plans, and checks that operations are due in order, within the plan, at the plan's rate.
func TestDueNeverGoesBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := stages.Plan{Open: true}
		for range rapid.IntRange(1, 4).Draw(t, "stages") {
			p.Stages = append(p.Stages, stages.Stage{
				Length: time.Duration(rapid.IntRange(1, 5000).Draw(t, "ms")) * time.Millisecond,
				From:   float64(rapid.IntRange(0, 200).Draw(t, "from")), To: float64(rapid.IntRange(0, 200).Draw(t, "to")),
			})
		}
		last := time.Duration(0)
		for i := range p.Operations() {
			due := p.Due(i)
			if due < last || due > p.Length() {
				t.Fatalf("operation %d is due at %v, the one before at %v, the plan's length is %v", i, due, last, p.Length())
			}
			last = due
		}
	})
}

// TestNumberOfClients checks the number of clients over time.
func TestNumberOfClients(t *testing.T) {
	p := parse(t, "10s:0..4,10s:4,10s:4..0")
	for at, want := range map[time.Duration]int{
		0: 0, time.Millisecond: 1, 2500 * time.Millisecond: 1, 2501 * time.Millisecond: 2, 9 * time.Second: 4,
		12 * time.Second: 4, 21 * time.Second: 4, 23 * time.Second: 3, 29 * time.Second: 1, 30 * time.Second: 0,
	} {
		if got := p.Clients(at); got != want {
			t.Errorf("%d clients at %v, want %d", got, at, want)
		}
	}
}

// TestConstantAndZeroPlans checks plans with a constant level, and the zero Plan.
func TestConstantAndZeroPlans(t *testing.T) {
	if got := parse(t, "1s:5..5/s").Stages[0]; got.From != 5 || got.To != 5 {
		t.Errorf("a constant level goes from %g to %g, want 5", got.From, got.To)
	}
	if !(stages.Plan{}).IsZero() {
		t.Error("IsZero is false for the zero Plan")
	}
	if n := stages.Constant(true, time.Second, 5).Operations(); n != 5 {
		t.Errorf("a second at 5/s has %d operations, want 5", n)
	}
}

// TestInvalidPlansAreRejected checks that Parse rejects invalid plans with the reason.
func TestInvalidPlansAreRejected(t *testing.T) {
	for text, want := range map[string]string{
		"": "no colon", "10s": "no colon", "10:5/s": "not a duration", "10s:x/s": "not a number", "10s:1../s": "not a number",
		"10s:5/s,10s:5": "mixed", "0s:5/s": "lasts", "-1s:5/s": "lasts", "10s:-5/s": "0 or more", "10s:NaN/s": "0 or more",
		"10s:Inf/s": "0 or more", "10s:1.5": "whole numbers", "10s:0/s": "all levels are 0", "9000h:1/s": "at most", "1s:1e9/s": "at most", "1s:1e6": "at most",
	} {
		if _, err := stages.Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
}
