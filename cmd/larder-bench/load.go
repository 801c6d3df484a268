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
	processes        int
}

// Abilities of a workload, each of which adds flags.
type ability int

const (
	rated     ability = 1 << iota // --rate: its operations can be due at times
	staged                        // --stages, --duration and --warmup
	shared                        // --processes: several processes can run it
	clientele                     // --clients
)

// add adds the flags of a load.
func (l *load) add(cmd *cobra.Command, can ability) {
	flags := newGroup(cmd.Flags(), groupLoad)
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
	if can&shared != 0 {
		flags.IntVar(&l.processes, "processes", 1, "client processes that share the load; their histograms are merged without loss")
	}
	flags.done()
}

// shape makes a Shape of the flags. count names the flag that says how many operations there
// are.
func (o *options) shape(cmd *cobra.Command, count string) (bench.Shape, error) {
	l := &o.load
	shape := bench.Shape{Warmup: l.warmup}
	switch {
	case l.warmup < 0 || l.duration < 0 || l.rate < 0:
		return shape, errors.New("--warmup, --duration and --rate cannot be negative")
	case l.stages != "" && (l.duration != 0 || cmd.Flags().Changed("rate")):
		return shape, errors.New("--stages says what the rate is and how long the load lasts: leave out --duration and --rate")
	case (l.stages != "" || l.duration != 0) && cmd.Flags().Changed(count):
		return shape, fmt.Errorf("--stages and --duration say how long the load lasts: leave out --%s", count)
	case l.stages != "":
		var err error
		if shape.Plan, err = stages.Parse(l.stages); err != nil {
			return shape, fmt.Errorf("--stages: %w", err)
		}
		if !shape.Plan.Open && cmd.Flags().Changed("clients") {
			return shape, errors.New("--stages says how many clients there are: leave out --clients, or plan rates, which end in /s")
		}
		if !shape.Plan.Open {
			l.clients = int(shape.Plan.Most())
		}
	case l.duration != 0 && l.rate > 0:
		shape.Plan = stages.Hold(true, l.duration, l.rate)
	case l.duration != 0:
		shape.Plan = stages.Hold(false, l.duration, float64(l.clients))
	}
	if !shape.Plan.IsZero() && o.part.Of > 0 {
		shape.Plan = shape.Plan.Split(o.part.Number, o.part.Of)
	}
	return shape, nil
}

// check returns an error if the load cannot be shared by so many processes.
func (l *load) check(count int, name string) error {
	switch {
	case l.processes < 0:
		return errors.New("--processes cannot be negative")
	case l.processes > 1 && (l.clients < l.processes || count < l.processes):
		return fmt.Errorf("--processes %d: want at least as many --clients and --%s", l.processes, name)
	}
	return nil
}

// share is this process's part of a number.
func (o *options) share(n int) int {
	if o.part.Of == 0 {
		return n
	}
	return stages.Share(n, o.part.Number, o.part.Of)
}

// rate is this process's part of the rate.
func (o *options) rate() float64 {
	if o.part.Of == 0 {
		return o.load.rate
	}
	return o.load.rate / float64(o.part.Of)
}

// clients is this process's part of the clients.
func (o *options) clients() int { return o.share(o.load.clients) }

// newRound is a number that no other round and process has: objects are named by it.
func (o *options) newRound() int {
	const most = 100 // processes that begin in one microsecond
	return int(time.Now().UnixMicro())*most + o.part.Number%most
}

// named are results as a workload will have them: the first is a whole, unless the others are
// no parts of it.
func named(names ...string) []*bench.Result {
	var all []*bench.Result
	for _, name := range names {
		all = append(all, &bench.Result{Name: name})
	}
	return all
}
