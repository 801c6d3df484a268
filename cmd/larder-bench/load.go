package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/stages"
)

// load are the flags that say how the load of a workload goes.
type load struct {
	clients          int
	rate             float64
	stages           string
	duration, warmup time.Duration
}

// Abilities of a workload. Each adds flags.
type ability int

const (
	rated     ability = 1 << iota // --rate: its operations can be due at times
	staged                        // --stages, --duration and --warmup
	clientele                     // --clients
)

// add adds the flags of a load.
func (l *load) add(cmd *cobra.Command, can ability) {
	flags := cmd.Flags()
	if can&clientele != 0 {
		flags.IntVar(&l.clients, "clients", 1, "requests under way at a time, at most")
	}
	if can&rated != 0 {
		flags.Float64Var(&l.rate, "rate", 0, "operations per second of all clients (open loop); 0 sends as fast as answers come (closed loop)")
	}
	if can&staged != 0 {
		flags.StringVar(&l.stages, "stages", "", "`plan` of the load: "+stages.Syntax)
		flags.DurationVar(&l.duration, "duration", 0, "run for so long, instead of for a number of operations")
		flags.DurationVar(&l.warmup, "warmup", 0, "run the load as it begins for so long before anything is measured")
	}
}

// schedule makes a Schedule of the flags. count names the flag that says how many operations there
// are.
func (o *options) schedule(cmd *cobra.Command, count string) (bench.Schedule, error) {
	l := &o.load
	schedule := bench.Schedule{Warmup: l.warmup}
	switch {
	case l.warmup < 0 || l.duration < 0 || l.rate < 0:
		return schedule, errors.New("--warmup, --duration and --rate cannot be negative")
	case l.stages != "" && (l.duration != 0 || cmd.Flags().Changed("rate")):
		return schedule, errors.New("--stages says what the rate is and how long the load lasts: leave out --duration and --rate")
	case (l.stages != "" || l.duration != 0) && cmd.Flags().Changed(count):
		return schedule, fmt.Errorf("--stages and --duration say how long the load lasts: leave out --%s", count)
	}
	given := cmd.Flags().Changed("clients")
	schedule, err := bench.NewSchedule(l.stages, l.duration, l.warmup, l.rate, &l.clients)
	switch {
	case err != nil:
		return schedule, fmt.Errorf("--stages: %w", err)
	case l.stages != "" && !schedule.Plan.Open && given:
		return schedule, errors.New("--stages says how many clients there are: leave out --clients, or plan rates, which end in /s")
	}
	return schedule, nil
}

// newRound returns a number that no other run has: it is in the names of objects.
func newRound() int { return int(time.Now().UnixMicro()) }

// named are results as a workload will have them: the first is a whole, unless the others are
// no parts of it.
func named(names ...string) []*bench.Result {
	var all []*bench.Result
	for _, name := range names {
		all = append(all, &bench.Result{Name: name})
	}
	return all
}
