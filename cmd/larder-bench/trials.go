package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/cluster"
	"github.com/larder-io/larder/bench/crds"
	"github.com/larder-io/larder/bench/report"
	"github.com/larder-io/larder/bench/rollout"
	"github.com/larder-io/larder/bench/starts"
	"github.com/larder-io/larder/bench/testservers"
)

func clusterCommand(o *options) *cobra.Command {
	c := cluster.Config{}
	cmd := &cobra.Command{
		Use: "cluster", Short: "Simulate the nodes, controllers and scheduler of a cluster as a load",
		Long: `Start etcd, and in turn kube-apiserver and Larder over it. Simulate the kubelets and kube-proxies of
--nodes nodes, the controller manager and the scheduler; restart the server under this load; and print
the cost. Programs that are not given are built, inside Larder's source tree. docs/bench.md lists the
simulated requests.`,
		Example: `  larder-bench cluster --nodes 100 --duration 20s
  larder-bench cluster --nodes 500,1000 --protocol h2,h1 --markdown table.md --json cluster.json
  larder-bench cluster --nodes 2000 --server Larder --churn 20`,
	}
	flags := cmd.Flags()
	flags.IntSliceVar(&c.Nodes, "nodes", []int{500}, "sizes of the clusters, in nodes")
	flags.IntVar(&c.PodsPerNode, "pods-per-node", 10, "number of pods on each node")
	flags.Float64Var(&c.Churn, "churn", -1, "pods to replace per second; -1 replaces one per second for 250 nodes")
	flags.StringSliceVar(&c.Protocols, "protocol", []string{cluster.HTTP2}, "protocols of the components: h2 (their default), h1, or both")
	flags.DurationVar(&c.Duration, "duration", 30*time.Second, "time to measure the load before the server is restarted")
	flags.BoolVar(&c.Kill, "kill", false, "send SIGKILL instead of SIGTERM before the restart")
	return trialCommand(o, &c.Trials, cmd, nil, func(ctx context.Context) ([]*bench.Result, error) { return cluster.Run(ctx, c) })
}

func crdsCommand(o *options) *cobra.Command {
	c := crds.Config{}
	cmd := &cobra.Command{
		Use: "crds", Short: "Measure the cost of CRDs",
		Long: `Start kube-apiserver and Larder in turn, each over its own etcd, and create CRDs. Print the cost until
they are served and described, and the memory of a CRD, idle and in use. Programs that are not given
are built, inside Larder's source tree.`,
		Example: `  larder-bench crds --count 300
  larder-bench crds --count 10000 --server Larder --used=false`,
	}
	flags := cmd.Flags()
	flags.IntVar(&c.Count, "count", 300, "number of CRDs")
	flags.IntVar(&c.Clients, "clients", 4, "maximum number of concurrent requests")
	flags.BoolVar(&c.Used, "used", true, "create, read and list an object of each CRD")
	return trialCommand(o, &c.Trials, cmd, nil, func(ctx context.Context) ([]*bench.Result, error) { return crds.Run(ctx, c) })
}

func rolloutCommand(o *options) *cobra.Command {
	c := rollout.Config{}
	cmd := &cobra.Command{
		Use: "rollout", Short: "Roll out Deployments with kube-controller-manager, kube-scheduler and kwok",
		Long: `Start kube-apiserver and Larder in turn, each over an empty etcd, with an unmodified
kube-controller-manager and kube-scheduler, and kwok for the nodes. Roll out Deployments, update them,
wait, and delete their namespace. Print the cost of each phase. Servers that are not given are built,
inside Larder's source tree. The other programs come from --programs, or from the newest "larder cluster"
of this user.`,
		Example: `  larder-bench rollout --nodes 100 --pods 1500 --rounds 2
  larder-bench rollout --programs ./bin --server Larder --json rollout.json`,
	}
	flags := cmd.Flags()
	flags.StringVar(&c.Programs, "programs", "", "directory of kube-controller-manager, kube-scheduler, kwok and its stage-fast.yaml; by default the one that \"larder cluster\" has built for this user")
	flags.IntVar(&c.Nodes, "nodes", 100, "number of nodes")
	flags.IntVar(&c.Pods, "pods", 1500, "number of pods, 100 for each Deployment")
	flags.DurationVar(&c.Rest, "rest", 20*time.Second, "time to wait between the update and the deletion")
	check := func() (err error) {
		if err := c.Check(); err != nil {
			return err
		}
		c.Programs, err = rollout.FindPrograms(c.Programs)
		return err
	}
	return trialCommand(o, &c.Trials, cmd, check, func(ctx context.Context) ([]*bench.Result, error) { return rollout.Run(ctx, c) })
}

func startsCommand(o *options) *cobra.Command {
	c := starts.Config{}
	cmd := &cobra.Command{
		Use: "starts", Short: "Start Larder and kube-apiserver on stored objects of several kinds",
		Long: `For each kind of data, start an etcd, write the objects into it, and start kube-apiserver and Larder
over it in turn, --rounds times. Print the cost of each start until the server is ready, and until the
client has received the first list of all objects. Programs that are not given are built, inside
Larder's source tree. docs/bench.md lists the kinds of data.`,
		Example: `  larder-bench starts --objects 5000 --data shared,own
  larder-bench starts --rounds 3 --markdown table.md --json starts.json`,
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&c.Data, "data", starts.Names(), "kinds of data, which docs/bench.md describes")
	flags.IntVar(&c.Objects, "objects", 50000, "number of objects of each kind")
	return trialCommand(o, &c.Trials, cmd, nil, func(ctx context.Context) ([]*bench.Result, error) { return starts.Run(ctx, c) })
}

func besideCommand(o *options) *cobra.Command {
	b := starts.Beside{}
	cmd := &cobra.Command{
		Use: "beside", Short: "Run many servers at once and measure them while they are idle",
		Long: `Start --count kube-apiservers, each with its own etcd and no objects, and as many Larders, as concurrent
test suites do. Print the time until one is ready, and its private memory and CPU at rest. Programs that
are not given are built, inside Larder's source tree.`,
		Example: `  larder-bench beside --count 20
  larder-bench beside --server kube-apiserver --stock assets/kube-apiserver --etcd assets/etcd`,
	}
	cmd.Flags().IntVar(&b.Count, "count", 20, "number of servers")
	cmd.Flags().DurationVar(&b.Rest, "rest", 30*time.Second, "time to wait before the measurement, and length of the measurement")
	return trialCommand(o, &b.Trials, cmd, nil, b.Run)
}

// addPrograms adds the flags of the programs that a command starts.
func addPrograms(cmd *cobra.Command, f *testservers.Config) {
	flags := cmd.Flags()
	flags.StringVar(&f.Stock, "stock", "", "path of the kube-apiserver to start; built from bench/buildapiserver if not given")
	flags.StringVar(&f.Larder, "larder", "", "path of the larder to start; built if not given")
	flags.StringVar(&f.Etcd, "etcd", "", "path of the etcd to start; built if not given")
}

// trialCommand completes a command that measures servers in turn. run returns results with names
// of the form "SERVER: WORK". check, unless nil, is called before programs are built.
func trialCommand(o *options, t *testservers.Trials, cmd *cobra.Command, check func() error, run func(context.Context) ([]*bench.Result, error)) *cobra.Command {
	addPrograms(cmd, &t.TestServers)
	cmd.GroupID, cmd.Args = judging, cobra.NoArgs
	cmd.Flags().StringSliceVar(&t.Servers, "server", []string{testservers.Stock, testservers.Larder}, "servers to measure, in turn")
	cmd.Flags().StringVar(&o.outputs.markdown, "markdown", "", "file to write the table to, as Markdown")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := refuse(cmd, "it starts the servers itself, and prints one table", "kubeconfig", "pid", "etcd-pid", "http2-streams", "timeout", "retry-after", "series", "as", "token"); err != nil {
			return err
		}
		if len(o.thresholds.Bounds) > 0 {
			return fmt.Errorf("%s does not support thresholds", cmd.Name())
		}
		t.Rounds = o.rounds
		if check != nil {
			if err := check(); err != nil {
				return err
			}
		}
		old, err := o.prepare(nil)
		if err != nil {
			return err
		}
		found := &report.Report{Pairs: true}
		err = o.started(cmd, t, func(ctx context.Context) (err error) {
			found.Results, err = run(ctx)
			return err
		})
		return o.finish(cmd, found, old, err)
	}
	return cmd
}

// started builds the programs that t does not name, and runs work, whose servers have a temporary directory. It prints
// the progress of both.
func (o *options) started(cmd *cobra.Command, t *testservers.Trials, work func(context.Context) error) error {
	dir, err := os.MkdirTemp("", "larder-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if !o.quiet {
		t.Say = func(text string) { fmt.Fprintln(cmd.ErrOrStderr(), text) }
	}
	if err := t.Build(cmd.Context(), dir); err != nil {
		return err
	}
	return work(cmd.Context())
}
