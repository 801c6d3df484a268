package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/stages"
)

func addSeedFlags(flags *pflag.FlagSet, c *bench.SeedConfig) {
	flags.IntVar(&c.Pods, "pods", 10000, "number of pods")
	flags.IntVar(&c.Namespaces, "namespaces", 50, "number of namespaces that have the pods")
	flags.IntVar(&c.Nodes, "nodes", 500, "number of nodes that run the pods; 0 leaves the pods unscheduled")
}

func seedCommand(o *options) *cobra.Command {
	c := bench.SeedConfig{}
	cmd := &cobra.Command{
		Use: "seed", GroupID: preparing, Short: "Create realistic pods", Args: cobra.NoArgs,
		Long: "Create realistic pods, with the field managers of a controller and of a kubelet, which sets the status. Existing pods are not changed.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := refuse(cmd, "existing pods are not created again", "rounds", "baseline"); err != nil {
				return err
			}
			return single(o, cmd, "seed pods", c, bench.Seed)
		},
	}
	addSeedFlags(cmd.Flags(), &c)
	addClients(cmd, &c.Clients)
	return cmd
}

func customCommand(o *options) *cobra.Command {
	c := bench.CustomConfig{}
	cmd := &cobra.Command{
		Use: "custom", GroupID: writing, Short: "Create a CRD; create, update, patch and apply its objects", Args: cobra.NoArgs,
		Long: `Create a CRD and its objects, and change some by update, by merge patch and by server-side
apply. --resource is workers (5 KB each, with defaults and pruned fields) or reports (like those of an
image scanner, of about --bytes). Other commands can read and watch the objects, for example at
` + bench.CustomPath("workers") + `.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := refuse(cmd, "existing objects are not created again", "rounds", "baseline"); err != nil {
				return err
			}
			names, err := c.Kinds()
			if err != nil {
				return err
			}
			return o.run(cmd, named(names...), func(ctx context.Context, t *bench.Target) ([]*bench.Result, error) { return bench.Custom(ctx, t, c) })
		},
	}
	addClients(cmd, &c.Clients)
	cmd.Flags().StringVar(&c.Resource, "resource", "workers", "resource to create: "+strings.Join(bench.CustomResources, ", "))
	cmd.Flags().IntVar(&c.Objects, "objects", 1000, "number of objects")
	cmd.Flags().IntVar(&c.Namespaces, "namespaces", 10, "number of namespaces that have the objects")
	cmd.Flags().IntVar(&c.Bytes, "bytes", 350000, "approximate size of a report")
	cmd.Flags().IntVar(&c.Changes, "changes", 50, "number of changes of each kind, at most --objects")
	return cmd
}

func readCommand(o *options) *cobra.Command {
	c := bench.ReadConfig{}
	cmd := &cobra.Command{
		Use: "read PATH", GroupID: reading, Short: "GET a path repeatedly: an object, a collection, a selection", Args: pathArg(&c.Path, false),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.Name = c.Path
			return single(o, cmd, c.Name, c, bench.Read)
		},
	}
	addLoad(cmd, &c.Load, "requests", true)
	cmd.Flags().StringVar(&c.Accept, "accept", bench.Protobuf, "media type to request")
	cmd.Flags().StringVar(&c.Encoding, "accept-encoding", "", "Accept-Encoding header, none if empty")
	cmd.Flags().IntVar(&c.Operations, "requests", 20, "number of requests")
	return cmd
}

func watchListCommand(o *options) *cobra.Command {
	c := bench.WatchListConfig{}
	cmd := &cobra.Command{
		Use: "watchlist [PATH]", GroupID: reading, Short: "Open watches that begin with all objects, as informers do", Args: pathArg(&c.Path, true),
		Long: "Open watches with sendInitialEvents and read each until the bookmark that ends the initial events. PATH is /api/v1/pods if not given.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.Name = "watchlist " + c.Path
			return single(o, cmd, c.Name, c, bench.WatchList)
		},
	}
	addLoad(cmd, &c.Load, "requests", false)
	cmd.Flags().StringVar(&c.Accept, "accept", bench.Protobuf, "media type of the events")
	cmd.Flags().IntVar(&c.Operations, "requests", 10, "number of watches")
	cmd.Flags().IntVar(&c.Objects, "objects", 0, "number of initial objects that each watch must receive; 0 does not check it")
	cmd.Flags().IntVar(&c.Shards, "shards", 0, "number of shards; each watch selects one, in turn. The server needs the feature gate ShardedListAndWatch")
	return cmd
}

// pathArg makes a command accept the argument PATH, which is /api/v1/pods if it is optional and not given.
func pathArg(path *string, optional bool) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if *path = "/api/v1/pods"; optional && len(args) == 0 {
			return nil
		}
		if err := cobra.ExactArgs(1)(cmd, args); err != nil {
			return err
		}
		if *path = args[0]; !strings.HasPrefix(*path, "/") || strings.ContainsFunc(*path, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return fmt.Errorf("PATH %q: want a path such as /api/v1/pods, with or without a query, in which other characters are escaped", *path)
		}
		return nil
	}
}

func writeCommand(o *options) *cobra.Command {
	c := bench.WriteConfig{}
	cmd := &cobra.Command{
		Use: "write", GroupID: writing, Short: "Create, patch, apply and delete ConfigMaps", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := refuse(cmd, "it sends one kind of write after the other", "warmup"); err != nil {
				return err
			}
			return o.run(cmd, named(bench.Verbs...), func(ctx context.Context, t *bench.Target) ([]*bench.Result, error) { return bench.Write(ctx, t, c) })
		},
	}
	addLoad(cmd, &c.Load, "objects", true)
	cmd.Flags().StringVar(&c.Namespace, "namespace", "bench-writes", "namespace of the objects; created if it does not exist")
	cmd.Flags().IntVar(&c.Operations, "objects", 1000, "number of ConfigMaps")
	return cmd
}

func componentsCommand(o *options) *cobra.Command {
	c := bench.ComponentsConfig{}
	cmd := &cobra.Command{
		Use: "components", GroupID: writing, Short: "Send the writes of a cluster's components: pods and their status, bindings, Leases, events", Args: cobra.NoArgs,
		Long: "Send the writes of a cluster's components, each kind in turn. Pods are deleted at the end; nodes, Leases, events and Deployments stay.",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if err := refuse(cmd, "it sends one kind of write after the other", "warmup"); err != nil {
				return err
			}
			return o.run(cmd, named(bench.ComponentWrites()...), func(ctx context.Context, t *bench.Target) ([]*bench.Result, error) {
				return bench.Components(ctx, t, c)
			})
		},
	}
	addLoad(cmd, &c.Load, "objects", true)
	cmd.Flags().StringVar(&c.Namespace, "namespace", "bench-components", "namespace of the pods; created if it does not exist")
	cmd.Flags().IntVar(&c.Operations, "objects", 1000, "number of pods, and of writes of each kind")
	cmd.Flags().IntVar(&c.Nodes, "nodes", 100, "number of nodes that the pods are bound to")
	return cmd
}

func mixedCommand(o *options) *cobra.Command {
	c := bench.MixedConfig{}
	cmd := &cobra.Command{
		Use: "mixed", GroupID: whole, Short: "Send the requests of a cluster: mostly small reads, some lists and writes", Args: cobra.NoArgs,
		Long: `Send requests for pods that seed has created: 50 % GET of a pod, 20 % LIST of a node, 9 % LIST of a
namespace, 1 % LIST of the first 500, 20 % patches. The pod, node or namespace of each request is
random. Thresholds without a kind apply to the whole load. Kinds are "get pod", "list node",
"list namespace", "list all, first 500" and "patch pod". A first word, such as list, names all kinds that
begin with it.`,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			kinds := named(append([]string{bench.MixedName}, bench.MixedKinds()...)...)
			for _, part := range kinds[1:] {
				part.Part = true
			}
			return o.run(cmd, kinds, func(ctx context.Context, t *bench.Target) ([]*bench.Result, error) { return bench.Mixed(ctx, t, c) })
		},
	}
	addLoad(cmd, &c.Load, "requests", true)
	addSeedFlags(cmd.Flags(), &c.Seed)
	cmd.Flags().IntVar(&c.Operations, "requests", 5000, "number of requests")
	return cmd
}

func slowCommand(o *options) *cobra.Command {
	c := bench.SlowConfig{Watch: bench.WatchConfig{Path: "/api/v1/pods", Accept: bench.Protobuf}}
	seed := bench.SeedConfig{}
	objects := 0
	cmd := &cobra.Command{
		Use: "slow [PATH]", GroupID: whole, Short: "Request large lists at the same time and read them slowly", Args: pathArg(&c.Path, true),
		Long: `Request PATH (/api/v1/pods if not given) from --clients clients at once, each over its own connection,
and read the responses slowly, while pods that seed has created are patched and watched. The server
should use little memory (--pid, --max-peak-rss), complete all responses and end no watch.`,
		Example: "  larder-bench slow --clients 64 --bytes-per-second 4000000 --pid $(pidof larder) --max-peak-rss 536870912",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.Name = "slow readers of " + c.Path
			if err := chooseObjects(&c.Watch, seed, objects); err != nil {
				return err
			}
			c.Watch.Clients = 1
			return o.run(cmd, named(c.Name, c.Watch.Name), func(ctx context.Context, t *bench.Target) ([]*bench.Result, error) { return bench.Slow(ctx, t, c) })
		},
	}
	flags := cmd.Flags()
	addClients(cmd, &c.Clients)
	addRate(cmd, &c.Watch.Rate)
	addSeedFlags(flags, &seed)
	addChanges(flags, &c.Watch, &objects)
	flags.StringSliceVar(&c.Accepts, "accept", []string{bench.Protobuf, bench.JSON}, "media types, which the clients request in turn")
	flags.IntVar(&c.BytesPerSecond, "bytes-per-second", 4<<20, "bytes that each client reads per second")
	return cmd
}

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
			if err := chooseObjects(&c, seed, objects); err != nil {
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
			return single(o, cmd, c.Name, c, bench.Watch)
		},
	}
	flags := cmd.Flags()
	addLoad(cmd, &c.Load, "changes", true)
	addSeedFlags(flags, &seed)
	addChanges(flags, &c, &objects)
	flags.StringVar(&c.Accept, "accept", bench.Protobuf, "media type of the events")
	flags.IntVar(&c.Stuck, "stuck", 0, "number of additional watchers that never read")
	flags.IntVar(&shards, "shards", 0, "number of shards, with one watcher each, instead of --watchers. The server needs the feature gate ShardedListAndWatch")
	flags.StringVar(&through, "through", "", "kubeconfig of another server of the same etcd, which gets the patches; by default the server under load gets them")
	return cmd
}

func addChanges(flags *pflag.FlagSet, c *bench.WatchConfig, objects *int) {
	flags.IntVar(&c.Watchers, "watchers", 200, "number of watches")
	flags.IntVar(&c.Operations, "changes", 200, "number of patches; --rate is their rate")
	flags.IntVar(objects, "objects", 50, "number of pods to patch in turn")
}

// chooseObjects sets the objects to change to the first pods that seed has created.
func chooseObjects(c *bench.WatchConfig, seed bench.SeedConfig, objects int) error {
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
			return single(o, cmd, c.Name, c, bench.Hold)
		},
	}
	cmd.Flags().StringVar(&c.Accept, "accept", bench.Protobuf, "media type of the events")
	cmd.Flags().IntVar(&c.Watchers, "watchers", 1000, "number of watches")
	cmd.Flags().DurationVar(&c.Idle, "idle", 5*time.Second, "time to hold the watches open without events")
	return cmd
}

// addLoad adds the flags of a load; rated adds --rate. The caller adds the flag count, the number of operations. A
// PreRunE sets the plan of the load.
func addLoad(cmd *cobra.Command, l *bench.Load, count string, rated bool) {
	flags := cmd.Flags()
	addClients(cmd, &l.Clients)
	if rated {
		addRate(cmd, &l.Rate)
	}
	plan := flags.String("stages", "", "`plan` of the load: "+stages.Syntax)
	duration := flags.Duration("duration", 0, "time to run the load, instead of a number of operations")
	flags.DurationVar(&l.Warmup, "warmup", 0, "time to run the load at its initial level before anything is measured")
	cmd.PreRunE = func(*cobra.Command, []string) error { return setPlan(flags, l, count, *plan, *duration) }
}

func addClients(cmd *cobra.Command, clients *int) {
	cmd.Flags().IntVar(clients, "clients", 1, "maximum number of concurrent requests")
}

func addRate(cmd *cobra.Command, rate *float64) {
	cmd.Flags().Float64Var(rate, "rate", 0, "operations per second of all clients (open loop); 0 sends each request when the previous one has ended (closed loop)")
}

// setPlan sets the plan of a load from --stages or --duration.
func setPlan(flags *pflag.FlagSet, l *bench.Load, count, plan string, duration time.Duration) (err error) {
	switch {
	case l.Warmup < 0 || duration < 0 || l.Rate < 0:
		return errors.New("--warmup, --duration and --rate cannot be negative")
	case l.Operations < 1:
		return fmt.Errorf("--%s must be at least 1, is %d", count, l.Operations)
	case plan != "" && (duration != 0 || flags.Changed("rate")):
		return errors.New("--stages sets the rate and the length of the load: omit --duration and --rate")
	case (plan != "" || duration != 0) && flags.Changed(count):
		return fmt.Errorf("--stages and --duration set the length of the load: omit --%s", count)
	case plan == "" && duration > 0 && l.Rate > 0:
		l.Plan = stages.Constant(true, duration, l.Rate)
	case plan == "" && duration > 0:
		l.Plan = stages.Constant(false, duration, float64(l.Clients))
	case plan != "":
		if l.Plan, err = stages.Parse(plan); err != nil {
			return fmt.Errorf("--stages: %w", err)
		}
		if l.Plan.Open {
			return nil
		}
		if flags.Changed("clients") {
			return errors.New("--stages sets the number of clients: omit --clients, or plan rates, which end in /s")
		}
		l.Clients = int(l.Plan.Most())
	}
	return nil
}

func named(names ...string) []*bench.Result {
	var all []*bench.Result
	for _, name := range names {
		all = append(all, &bench.Result{Name: name})
	}
	return all
}
