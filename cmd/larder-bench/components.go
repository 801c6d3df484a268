package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/larder-io/larder/bench"
)

func componentsCommand(o *options) *cobra.Command {
	c := bench.ComponentsConfig{}
	cmd := &cobra.Command{
		Use: "components", GroupID: writing, Short: "Write as a cluster's components do: pods and their status, bindings, Leases, events", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.Clients, c.Rate, c.Round = o.clients, o.rate, int(time.Now().Unix())
			return o.run(cmd, func(ctx context.Context, t *bench.Target) ([]*bench.Result, error) {
				return bench.Components(ctx, t, c)
			})
		},
	}
	cmd.Flags().StringVar(&c.Namespace, "namespace", "bench-components", "where; made if it does not exist")
	cmd.Flags().IntVar(&c.Objects, "objects", 1000, "how many pods, and how many writes of each kind")
	cmd.Flags().IntVar(&c.Nodes, "nodes", 100, "how many nodes the pods are bound to")
	return cmd
}
