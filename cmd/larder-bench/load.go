package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/stages"
)

// loadFlags holds the flags of the load of a workload.
type loadFlags struct {
	load     *bench.Load
	count    string // name of the flag with the number of operations
	stages   string
	duration time.Duration
}

// addLoad adds the flags of a load; rated adds --rate. The caller adds the flag count, the number of operations. A
// PreRunE sets the plan of the load.
func addLoad(cmd *cobra.Command, l *bench.Load, count string, rated bool) {
	f, flags := &loadFlags{load: l, count: count}, cmd.Flags()
	addClients(cmd, &l.Clients)
	if rated {
		addRate(cmd, &l.Rate)
	}
	flags.StringVar(&f.stages, "stages", "", "`plan` of the load: "+stages.Syntax)
	flags.DurationVar(&f.duration, "duration", 0, "time to run the load, instead of a number of operations")
	flags.DurationVar(&l.Warmup, "warmup", 0, "time to run the load at its initial level before anything is measured")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error { return f.plan(cmd) }
}

func addClients(cmd *cobra.Command, clients *int) {
	cmd.Flags().IntVar(clients, "clients", 1, "maximum number of concurrent requests")
}

func addRate(cmd *cobra.Command, rate *float64) {
	cmd.Flags().Float64Var(rate, "rate", 0, "operations per second of all clients (open loop); 0 sends each request when the previous one has ended (closed loop)")
}

// plan sets the plan of the load from the flags.
func (f *loadFlags) plan(cmd *cobra.Command) (err error) {
	l, given := f.load, cmd.Flags().Changed("clients")
	switch {
	case l.Warmup < 0 || f.duration < 0 || l.Rate < 0:
		return errors.New("--warmup, --duration and --rate cannot be negative")
	case f.stages != "" && (f.duration != 0 || cmd.Flags().Changed("rate")):
		return errors.New("--stages sets the rate and the length of the load: omit --duration and --rate")
	case (f.stages != "" || f.duration != 0) && cmd.Flags().Changed(f.count):
		return fmt.Errorf("--stages and --duration set the length of the load: omit --%s", f.count)
	case f.stages == "" && f.duration > 0 && l.Rate > 0:
		l.Plan = stages.Hold(true, f.duration, l.Rate)
	case f.stages == "" && f.duration > 0:
		l.Plan = stages.Hold(false, f.duration, float64(l.Clients))
	case f.stages != "":
		if l.Plan, err = stages.Parse(f.stages); err != nil {
			return fmt.Errorf("--stages: %w", err)
		}
		if l.Plan.Open {
			return nil
		}
		if given {
			return errors.New("--stages sets the number of clients: omit --clients, or plan rates, which end in /s")
		}
		l.Clients = int(l.Plan.Most())
	}
	return nil
}

// named returns empty results with these names.
func named(names ...string) []*bench.Result {
	var all []*bench.Result
	for _, name := range names {
		all = append(all, &bench.Result{Name: name})
	}
	return all
}
