package definitions

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/larder-io/larder/bench/testservers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestRatiosAreOfMeans: a row has the mean of the rounds of each server, and how many times
// stock's is Larder's. What only one was asked has no ratio.
func TestRatiosAreOfMeans(t *testing.T) {
	step := func(name string, cpu time.Duration) []Step { return []Step{{Name: name, CPU: cpu}} }
	table := &Table{Count: 10, Results: []*Result{
		{Server: testservers.Stock, Steps: step(stepV2, 3*time.Second), Empty: Memory{Heap: 10 << 20}, Idle: Memory{Heap: 20 << 20}},
		{Server: testservers.Stock, Steps: step(stepV2, 5*time.Second), Empty: Memory{Heap: 10 << 20}, Idle: Memory{Heap: 20 << 20}},
		{Server: testservers.Larder, Steps: step(stepV2, 2*time.Second)},
	}}
	text := table.Markdown()
	for _, want := range []string{
		"| CPU: first /openapi/v2 | 4.00 s | 2.00 s | 2.0 |\n",
		"| heap of each, idle, after a start | 1.05 MB | – | – |\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the table has no row %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, stepV3) {
		t.Errorf("the table has a row of nothing:\n%s", text)
	}
}

// TestLateAnswersAreAskedForAgain: what a server gives up is not a failure, all else is.
func TestLateAnswersAreAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		err := until(t.Context(), func() (bool, error) {
			asked++
			return asked == 3, []error{fmt.Errorf("GET: %w", errLate), nil, nil}[asked-1]
		})
		if err != nil || asked != 3 {
			t.Errorf("asked %d times: %v", asked, err)
		}
		refused := errors.New("refused")
		if err := until(t.Context(), func() (bool, error) { return false, refused }); err != refused {
			t.Errorf("a refusal: %v", err)
		}
	})
}

// TestWhatCannotBeIsRefused: no server is started for it.
func TestWhatCannotBeIsRefused(t *testing.T) {
	for _, c := range []Config{
		{PerGroup: 1, Fields: 1, Clients: 1, Trials: testservers.Trials{Rounds: 1}},
		{Count: 1, PerGroup: 1, Fields: 1, Clients: 1, Trials: testservers.Trials{Rounds: 1, Servers: []string{"etcd"}}},
	} {
		if table, err := Run(t.Context(), c); err == nil || table != nil {
			t.Errorf("%+v: %v, %v", c, table, err)
		}
	}
}

// TestPathsOfADocument: only what is a path below /apis counts, and a document may be cut off.
func TestPathsOfADocument(t *testing.T) {
	got := slices.Sorted(maps.Keys(paths([]byte(`{"paths":{"/api/v1/":{},"/apis/":{},"/apis/a/v1/x":{"$ref":"#/apis/no"},"/apis/a/v1/y":{}},"x":"/apis/cut`))))
	if want := []string{"/apis/", "/apis/a/v1/x", "/apis/a/v1/y"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
