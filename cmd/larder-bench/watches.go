package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/larder-io/larder/bench"
)

func watchCommand(o *options) *cobra.Command {
	c := bench.WatchConfig{}
	seed := bench.SeedConfig{}
	objects, shards, perNode, through := 0, 0, false, ""
	cmd := &cobra.Command{
		Use: "watch [PATH]", GroupID: watching, Short: "Change pods and measure the deliveries to watchers", Args: pathArg(&c.Path, true),
		Long: `Open watches of PATH (/api/v1/pods if not given), patch pods that seed has made, and record the time
from when each patch should have begun until each watcher has received it. Selectors of PATH must
select all these pods. --stuck adds watchers that never read. With --per-node each watcher selects
one node, and the cost is that of a change and not of a delivery; so it is with --shards, where there
is one watcher of each. --through sends the patches to another server of the same etcd, so that the
cost does not include the writes.`,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if err := choose(&c, seed, objects); err != nil {
				return err
			}
			if c.Plan.Open { // how many deliveries there are depends on it
				c.Operations = c.Plan.Operations()
			}
			if perNode {
				c.PerChange, c.Selections, c.Deliveries = true, seed.NodeSelections(seed.Nodes), seed.Deliveries(c.Watchers, objects, c.Operations)
			}
			if shards > 0 {
				c.Name = fmt.Sprintf("watch, %d shards", shards)
				c.PerChange, c.Selections, c.Watchers, c.Deliveries = true, bench.Shards(c.Path, shards), shards, c.Operations
			}
			if through != "" {
				if c.Through, err = o.other(through); err != nil {
					return fmt.Errorf("--through: %w", err)
				}
			}
			return one(o, cmd, c.Name, c, bench.Watch)
		},
	}
	flags := cmd.Flags()
	addLoad(cmd, &c.Load, "changes", true)
	addSeed(flags, &seed)
	addChanges(flags, &c, &objects)
	flags.StringVar(&c.Accept, "accept", bench.Protobuf, "media type of the events")
	flags.IntVar(&c.Stuck, "stuck", 0, "how many more that never read")
	flags.BoolVar(&perNode, "per-node", false, "watcher i selects the pods of node i")
	flags.IntVar(&shards, "shards", 0, "instead of --watchers: watcher i selects the i-th of as many shards; the server needs ShardedListAndWatch")
	flags.StringVar(&through, "through", "", "kubeconfig of the server that patches are sent to")
	return cmd
}

// addChanges adds the flags that say how many watch how many changes.
func addChanges(flags *pflag.FlagSet, c *bench.WatchConfig, objects *int) {
	flags.IntVar(&c.Watchers, "watchers", 200, "how many watches")
	flags.IntVar(&c.Operations, "changes", 200, "how many patches; --rate says how fast")
	flags.IntVar(objects, "objects", 50, "how many pods are patched in turn")
}

// choose takes the first pods that seed has made as those to change.
func choose(c *bench.WatchConfig, seed bench.SeedConfig, objects int) (err error) {
	c.Name = fmt.Sprintf("watch, %d watchers", c.Watchers)
	c.Objects, err = seeded(seed, objects)
	return err
}

// seeded returns the paths of the first pods that seed has made.
func seeded(seed bench.SeedConfig, objects int) ([]string, error) {
	if objects < 1 || objects > seed.Pods {
		return nil, fmt.Errorf("--objects must be between 1 and --pods, which is %d", seed.Pods)
	}
	return seed.PodPaths(objects), nil
}

// holdCommand is a workload of idle watches. name says what is done with how many.
func holdCommand(o *options, c *bench.HoldConfig, use, name, short string, run func(context.Context, *bench.Target, bench.HoldConfig) (*bench.Result, error)) *cobra.Command {
	cmd := &cobra.Command{
		Use: use + " [PATH]", GroupID: watching, Short: short, Args: pathArg(&c.Path, true),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.Name = fmt.Sprintf(name, c.Watchers)
			return one(o, cmd, c.Name, *c, run)
		},
	}
	cmd.Flags().StringVar(&c.Accept, "accept", bench.Protobuf, "media type of the events")
	cmd.Flags().IntVar(&c.Watchers, "watchers", 1000, "how many watches")
	return cmd
}

func openCommand(o *options) *cobra.Command {
	c := bench.HoldConfig{}
	cmd := holdCommand(o, &c, "open", "open %d watches", "Open watches and hold them idle: their CPU and memory", bench.Hold)
	cmd.Flags().DurationVar(&c.Idle, "idle", 5*time.Second, "how long to hold them")
	return cmd
}

func stormCommand(o *options) *cobra.Command {
	c := bench.HoldConfig{}
	cmd := holdCommand(o, &c, "storm", "storm of %d watches", "Close all watches at once and resume them at their last revision", bench.Storm)
	cmd.Flags().IntVar(&c.Returns, "returns", 3, "how often")
	return cmd
}
