package scale_test

import (
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/benchtest"
	"github.com/larder-io/larder/bench/process"
	"github.com/larder-io/larder/bench/scale"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestScale(t *testing.T) {
	server, kubeconfig := benchtest.Start(t)
	target, err := bench.NewTarget(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	target.Process = process.Process{PID: os.Getpid()}
	lines := 0
	config := scale.Config{
		Target: target, Sizes: []int{20, 5}, Watchers: []int{3, 1}, Rounds: 2, Items: 20,
		Say: func(string) { lines++ },
	}
	found, err := scale.Run(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range found.Charts {
		x := []float64{5, 20}
		if c.X == "watchers" {
			x = []float64{1, 3}
		}
		if len(c.Series) == 0 {
			t.Errorf("%s has no line", c.Title)
		}
		for _, s := range c.Series {
			if len(s.Points) != 2 || s.Points[0].X != x[0] || s.Points[1].X != x[1] {
				t.Errorf("%s, %s: %v, want points at %v", c.Title, s.Name, s.Points, x)
			}
		}
	}
	// Per size three kinds of LIST and the patches, per number of watchers a watch, all
	// twice; once the patches again, and per number of watchers opening them.
	if got, want := len(found.Results), 2*2*4+2*2+2+2; got != want {
		t.Errorf("%d results, want %d", got, want)
	}
	if lines == 0 {
		t.Error("nothing was said meanwhile")
	}
	pods := 0
	for _, path := range server.Objects() {
		if strings.Contains(path, "/pods/") {
			pods++
		}
	}
	if pods != 20 {
		t.Errorf("%d pods were made, want the largest size", pods)
	}
}

func TestConfigs(t *testing.T) {
	_, kubeconfig := benchtest.Start(t)
	target, err := bench.NewTarget(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	good := scale.Config{Target: target, Sizes: []int{1}, Watchers: []int{1}, Rounds: 1, Items: 1}
	if _, err := scale.Run(t.Context(), good); err == nil || !strings.Contains(err.Error(), "process") {
		t.Errorf("an unknown process gave %v", err)
	}
	for _, spoil := range []func(*scale.Config){
		func(c *scale.Config) { c.Sizes = nil }, func(c *scale.Config) { c.Watchers = nil }, func(c *scale.Config) { c.Rounds = 0 },
		func(c *scale.Config) { c.Sizes = []int{5, 0} }, func(c *scale.Config) { c.Watchers = []int{-1} }, func(c *scale.Config) { c.Items = 0 },
	} {
		c := good
		spoil(&c)
		if _, err := scale.Run(t.Context(), c); err == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
}
