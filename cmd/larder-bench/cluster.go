package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/larder-io/larder/bench/cluster"
	"github.com/larder-io/larder/bench/report"
)

func clusterCommand(o *options) *cobra.Command {
	c, markdown := cluster.Config{}, ""
	cmd := &cobra.Command{
		Use: "cluster", GroupID: judging, Short: "Simulate the nodes, controllers and scheduler of a cluster as a load", Args: cobra.NoArgs,
		Long: `Start etcd, and in turn a stock kube-apiserver and Larder over it; send each what the
kubelets and kube-proxies of so many nodes, the controller manager and the scheduler ask of
it; end the server and start it again meanwhile; and print what that cost. Programs that are
not given are built, inside Larder's source tree. docs/bench.md says what is simulated.`,
		Example: `  larder-bench cluster --nodes 100 --duration 20s
  larder-bench cluster --nodes 500,1000 --protocol h2,h1 --markdown table.md --json cluster.json
  larder-bench cluster --nodes 2000 --server Larder --churn 20`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.table(cmd, &c.Trials, markdown, func(ctx context.Context, r *report.Report) (string, error) {
				t, err := cluster.Run(ctx, c)
				if t == nil || len(t.Results) == 0 {
					return "", err
				}
				r.Cluster = t
				return t.Markdown(), err
			})
		},
	}
	addTrials(cmd, &c.Trials)
	flags := cmd.Flags()
	flags.IntSliceVar(&c.Nodes, "nodes", []int{500}, "numbers of nodes")
	flags.IntVar(&c.PodsPerNode, "pods-per-node", 10, "how many pods each node has")
	flags.IntVar(&c.StockNodes, "stock-nodes", 1000, "above so many nodes only Larder is asked")
	flags.Float64Var(&c.Churn, "churn", -1, "how many pods are replaced in a second; -1 is one for 250 nodes")
	flags.StringSliceVar(&c.Protocols, "protocol", []string{cluster.HTTP2}, "h2, which components speak, or h1, or both")
	flags.IntVar(&c.Connections, "connections", 1, "how many connections each component has by HTTP/2")
	flags.DurationVar(&c.Duration, "duration", 30*time.Second, "how long the load is measured before the server is restarted")
	flags.StringVar(&markdown, "markdown", "", "file to write the table to, as Markdown")
	return cmd
}
