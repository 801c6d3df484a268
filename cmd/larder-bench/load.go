package main

import (
	"github.com/spf13/cobra"

	"github.com/larder-io/larder/bench"
)

// addLoad adds the flags of a load. count is the flag of the number of operations, n its default.
func addLoad(cmd *cobra.Command, l *bench.Load, count string, n int, usage string) {
	addRate(cmd, &l.Rate)
	addClosedLoad(cmd, l, count, n, usage)
}

// addClosedLoad is addLoad for closed loops.
func addClosedLoad(cmd *cobra.Command, l *bench.Load, count string, n int, usage string) {
	addClients(cmd, &l.Clients)
	cmd.Flags().IntVar(&l.Operations, count, n, usage)
	cmd.Flags().DurationVar(&l.Duration, "duration", 0, "time to run the load, instead of a number of operations")
	cmd.Flags().DurationVar(&l.Warmup, "warmup", 0, "time to run the load before anything is measured")
	cmd.MarkFlagsMutuallyExclusive(count, "duration")
}

func addClients(cmd *cobra.Command, clients *int) {
	cmd.Flags().IntVar(clients, "clients", 1, "maximum number of concurrent requests")
}

func addRate(cmd *cobra.Command, rate *float64) {
	cmd.Flags().Float64Var(rate, "rate", 0, "operations per second of all clients (open loop); 0 sends as fast as answers come (closed loop)")
}

// named returns empty results of these names, which a workload will return.
func named(names ...string) []*bench.Result {
	var all []*bench.Result
	for _, name := range names {
		all = append(all, &bench.Result{Name: name})
	}
	return all
}
