package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/larder-io/larder/bench"
)

func watchCommand(o *options) *cobra.Command {
	c := bench.WatchConfig{Path: "/api/v1/pods"}
	seed := bench.SeedConfig{}
	objects, shards, perNode, through := 0, 0, false, ""
	cmd := &cobra.Command{
		Use: "watch", GroupID: watching, Short: "Change pods and see how watchers are told", Args: cobra.NoArgs,
		Long: `Open watches of pods that seed has made, patch pods, and record the time from when each
patch should have begun until each watcher has read of it. --stuck adds watchers that
never read. With --per-node each watcher selects one node, and the cost is told by change
instead of by delivery; so it is with --shards, where there is one watcher of each. With --through the patches are sent to another server of the
same etcd, which keeps the cost of writing out of the account.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := choose(&c, seed, objects); err != nil {
				return err
			}
			var err error
			if c.Schedule, err = o.schedule(cmd, "changes"); err != nil {
				return err
			}
			if plan := c.Schedule.Plan; plan.Open {
				c.Changes = plan.Operations()
			} else if !plan.IsZero() {
				return errors.New("watch must know how many changes there are: plan rates (--stages 10s:100/s), or give --rate beside --duration")
			}
			c.Rate, c.Writers = o.load.rate, o.load.clients
			if perNode {
				c.PerChange, c.Selections, c.Deliveries = true, seed.NodeSelections(seed.Nodes), seed.Deliveries(c.Watchers, objects, c.Changes)
			}
			if shards > 0 {
				c.Name = fmt.Sprintf("watch, %d shards", shards)
				c.PerChange, c.Selections, c.Watchers, c.Deliveries = true, bench.Shards(c.Path, shards), shards, c.Changes
			}
			if through != "" {
				if c.Through, err = o.other(through); err != nil {
					return fmt.Errorf("--through: %w", err)
				}
			}
			return o.run(cmd, named(c.Name), func(ctx context.Context, t *bench.Target) ([]*bench.Result, error) {
				return only(bench.Watch(ctx, t, c))
			})
		},
	}
	flags := cmd.Flags()
	o.load.add(cmd, clientele|rated|staged)
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
	flags.IntVar(&c.Changes, "changes", 200, "how many patches; --rate says how fast")
	flags.IntVar(objects, "objects", 50, "how many pods are patched in turn")
}

// choose takes the first pods that seed has made as those to change.
func choose(c *bench.WatchConfig, seed bench.SeedConfig, objects int) error {
	if objects < 1 || objects > seed.Pods {
		return fmt.Errorf("--objects must be between 1 and --pods, which is %d", seed.Pods)
	}
	c.Name, c.Objects = fmt.Sprintf("watch, %d watchers", c.Watchers), seed.PodPaths(objects)
	return nil
}

// addHold adds the flags of workloads of idle watches.
func addHold(flags *pflag.FlagSet, c *bench.HoldConfig) {
	flags.StringVar(&c.Accept, "accept", bench.Protobuf, "media type of the events")
	flags.IntVar(&c.Watchers, "watchers", 1000, "how many watches")
}

// hold completes the configuration of idle watches.
func (o *options) hold(c *bench.HoldConfig, args []string, name string) (err error) {
	if c.Path, err = pathOr(args, "/api/v1/pods"); err != nil {
		return err
	}
	c.Name = fmt.Sprintf(name, c.Watchers)
	return nil
}

func openCommand(o *options) *cobra.Command {
	c := bench.HoldConfig{}
	cmd := &cobra.Command{
		Use: "open [PATH]", GroupID: watching, Short: "Open watches and hold them idle: their CPU and memory", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.hold(&c, args, "open %d watches"); err != nil {
				return err
			}
			return o.run(cmd, named(c.Name), func(ctx context.Context, t *bench.Target) ([]*bench.Result, error) {
				return only(bench.Hold(ctx, t, c))
			})
		},
	}
	addHold(cmd.Flags(), &c)
	cmd.Flags().DurationVar(&c.Idle, "idle", 5*time.Second, "how long to hold them")
	return cmd
}

func stormCommand(o *options) *cobra.Command {
	c := bench.HoldConfig{}
	cmd := &cobra.Command{
		Use: "storm [PATH]", GroupID: watching, Short: "Break off all watches at once and let them come back where they were", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.hold(&c, args, "storm of %d watches"); err != nil {
				return err
			}
			return o.run(cmd, named(c.Name), func(ctx context.Context, t *bench.Target) ([]*bench.Result, error) {
				return only(bench.Storm(ctx, t, c))
			})
		},
	}
	addHold(cmd.Flags(), &c)
	cmd.Flags().IntVar(&c.Returns, "returns", 3, "how often")
	return cmd
}
