package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/larder-io/larder/bench"
)

func watchCommand(o *options) *cobra.Command {
	c := bench.WatchConfig{}
	seed := bench.SeedConfig{}
	objects, shards, through := 0, 0, ""
	cmd := &cobra.Command{
		Use: "watch [PATH]", GroupID: watching, Short: "Change pods and measure the deliveries to watchers", Args: pathArg(&c.Path, true),
		Long: `Open watches of PATH (/api/v1/pods if not given), patch pods that seed has created, and record the time
from when each patch was due until each watcher has received it. Selectors of PATH must select all these
pods. --stuck adds watchers that never read. With --shards each watcher selects one shard of the pods, and
the cost is per change instead of per delivery. --through sends the patches to another server of the same
etcd, so that the cost excludes the writes.`,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if err := choose(&c, seed, objects); err != nil {
				return err
			}
			if c.Plan.Open { // the number of deliveries depends on Operations
				c.Operations = c.Plan.Operations()
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
	flags.IntVar(&c.Stuck, "stuck", 0, "number of additional watchers that never read")
	flags.IntVar(&shards, "shards", 0, "number of shards, with one watcher each, instead of --watchers. The server needs the feature gate ShardedListAndWatch")
	flags.StringVar(&through, "through", "", "kubeconfig of another server of the same etcd, which gets the patches; by default the server under load gets them")
	return cmd
}

// addChanges adds the flags of the watchers and the changes.
func addChanges(flags *pflag.FlagSet, c *bench.WatchConfig, objects *int) {
	flags.IntVar(&c.Watchers, "watchers", 200, "number of watches")
	flags.IntVar(&c.Operations, "changes", 200, "number of patches; --rate is their rate")
	flags.IntVar(objects, "objects", 50, "number of pods to patch in turn")
}

// choose sets the objects to change to the first pods that seed has created.
func choose(c *bench.WatchConfig, seed bench.SeedConfig, objects int) error {
	if objects < 1 || objects > seed.Pods {
		return fmt.Errorf("--objects must be between 1 and --pods, which is %d", seed.Pods)
	}
	c.Name, c.Objects = fmt.Sprintf("watch, %d watchers", c.Watchers), seed.PodPaths(objects)
	return nil
}

func openCommand(o *options) *cobra.Command {
	c := bench.HoldConfig{}
	cmd := &cobra.Command{
		Use: "open [PATH]", GroupID: watching, Short: "Open watches and report the CPU of opening them and their memory", Args: pathArg(&c.Path, true),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.Name = fmt.Sprintf("open %d watches", c.Watchers)
			return one(o, cmd, c.Name, c, bench.Hold)
		},
	}
	cmd.Flags().StringVar(&c.Accept, "accept", bench.Protobuf, "media type of the events")
	cmd.Flags().IntVar(&c.Watchers, "watchers", 1000, "number of watches")
	cmd.Flags().DurationVar(&c.Idle, "idle", 5*time.Second, "time to hold the watches open without events")
	return cmd
}
