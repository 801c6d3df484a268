package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/larder-io/larder/bench"
)

func componentsCommand(o *options) *cobra.Command {
	c := bench.ComponentsConfig{}
	cmd := &cobra.Command{
		Use: "components", GroupID: writing, Short: "Write as a cluster's components do: pods and their status, bindings, Leases, events", Args: cobra.NoArgs,
		Long: "Write as a cluster's components do, each kind of write in turn. Pods are deleted at the end; nodes, Leases, events and deployments are left behind.",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if c.Schedule, err = o.schedule(cmd, "objects"); err != nil {
				return err
			}
			if !c.Schedule.Plan.IsZero() && !c.Schedule.Plan.Open {
				return errors.New("components must know how many writes there are: plan rates (--stages 10s:100/s), or give --rate beside --duration")
			}
			if err := refuse(cmd, "the kinds of writes follow each other", "warmup"); err != nil {
				return err
			}
			c.Clients, c.Rate = o.load.clients, o.load.rate
			return o.run(cmd, named(bench.ComponentWrites()...), func(ctx context.Context, t *bench.Target) ([]*bench.Result, error) {
				c.Round = newRound()
				return bench.Components(ctx, t, c)
			})
		},
	}
	o.load.add(cmd, clientele|rated|staged)
	cmd.Flags().StringVar(&c.Namespace, "namespace", "bench-components", "where; made if it does not exist")
	cmd.Flags().IntVar(&c.Objects, "objects", 1000, "how many pods, and how many writes of each kind")
	cmd.Flags().IntVar(&c.Nodes, "nodes", 100, "how many nodes the pods are bound to")
	return cmd
}
