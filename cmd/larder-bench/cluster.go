package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/larder-io/larder/bench/cluster"
	"github.com/larder-io/larder/bench/report"
	"github.com/larder-io/larder/bench/testservers"
)

// clustering are the flags of cluster.
type clustering struct {
	config   cluster.Config
	markdown string
}

func clusterCommand(o *options) *cobra.Command {
	c := &clustering{}
	cmd := &cobra.Command{
		Use: "cluster", GroupID: judging, Short: "Play what the nodes, controllers and scheduler of a cluster ask of a server", Args: cobra.NoArgs,
		Long: `Start etcd, and in turn a stock kube-apiserver and Larder over it; play at each what the
kubelets and kube-proxies of so many nodes, the controller manager and the scheduler ask of
it; end the server and start it again meanwhile; and print what that cost. Programs that are
not given are built, inside Larder's source tree. docs/bench.md says what is played.`,
		Example: `  larder-bench cluster --nodes 100 --duration 20s
  larder-bench cluster --nodes 500,1000 --protocol h2,h1 --markdown table.md --json cluster.json
  larder-bench cluster --nodes 2000 --server Larder --churn 20`,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.run(cmd, o) },
	}
	addPrograms(cmd, &c.config.TestServers)
	flags := cmd.Flags()
	flags.IntSliceVar(&c.config.Nodes, "nodes", []int{500}, "numbers of nodes")
	flags.IntVar(&c.config.PodsPerNode, "pods-per-node", 10, "how many pods each node has")
	flags.IntVar(&c.config.StockNodes, "stock-nodes", 1000, "above so many nodes only Larder is asked")
	flags.Float64Var(&c.config.Churn, "churn", -1, "how many pods are replaced in a second; -1 is one for 250 nodes")
	flags.StringSliceVar(&c.config.Protocols, "protocol", []string{cluster.HTTP2}, "h2, which components speak, or h1, or both")
	flags.IntVar(&c.config.Connections, "connections", 1, "how many connections each component has by HTTP/2")
	flags.StringSliceVar(&c.config.Servers, "server", []string{testservers.Stock, testservers.Larder}, "which servers are asked, in turn")
	flags.DurationVar(&c.config.Duration, "duration", 30*time.Second, "how long the load is measured before the server is restarted")
	flags.StringVar(&c.markdown, "markdown", "", "file to write the table to, as Markdown")
	return cmd
}

func (c *clustering) run(cmd *cobra.Command, o *options) (err error) {
	const why = "it starts the servers itself, and plays what it is told"
	if err := o.refuseAll(cmd, why); err != nil {
		return err
	}
	c.config.Command, c.config.Rounds = o.invocation(), o.rounds
	var table *cluster.Table
	err = o.started(cmd, needing(c.config.TestServers, c.config.Servers), nil, func(ctx context.Context, f testservers.Config, say func(string)) (err error) {
		c.config.TestServers, c.config.Say = f, say
		table, err = cluster.Run(ctx, c.config)
		return err
	})
	if table == nil || len(table.Results) == 0 {
		return err
	}
	// What was measured before a failure is worth having.
	return errors.Join(err, o.report(cmd, &report.Report{Cluster: table}, nil, nil, err), saveText(c.markdown, table.Markdown()))
}
