package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/larder-io/larder/bench/fleet"
	"github.com/larder-io/larder/bench/report"
	"github.com/larder-io/larder/bench/rollout"
)

func rolloutCommand(o *options) *cobra.Command {
	c := rollout.Config{}
	cmd := &cobra.Command{
		Use: "rollout", GroupID: judging, Short: "Run stock controllers, a scheduler and kwok over a server, and roll out Deployments", Args: cobra.NoArgs,
		Long: `Start an empty etcd, and in turn a stock kube-apiserver and Larder over it, with a stock
kube-controller-manager, a stock kube-scheduler, and kwok for the nodes; roll out Deployments,
update them, rest, and delete their namespace; and print what each phase cost. An operation
is a pod. Servers that are not given are built, inside Larder's source tree; the others are
those that "larder cluster" has built for this user.`,
		Example: `  larder-bench rollout --nodes 100 --pods 1500 --rounds 2
  larder-bench rollout --programs ./bin --server Larder --json rollout.json`,
		RunE: func(cmd *cobra.Command, _ []string) error { return runRollout(cmd, o, c) },
	}
	flags, f := cmd.Flags(), &c.Fleet
	flags.StringVar(&f.Stock, "stock", "", "kube-apiserver to start; built from bench/stock if not given")
	flags.StringVar(&f.Larder, "larder", "", "larder to start; built if not given")
	flags.StringVar(&f.Etcd, "etcd", "", "etcd to start; built if not given")
	flags.StringVar(&c.Programs, "programs", "", "directory of kube-controller-manager, kube-scheduler, kwok and its stage-fast.yaml")
	flags.IntVar(&c.Nodes, "nodes", 100, "how many nodes")
	flags.IntVar(&c.Pods, "pods", 1500, "how many pods, a hundred for each Deployment")
	flags.DurationVar(&c.Rest, "rest", 20*time.Second, "how long nothing is done between the update and the deletion")
	flags.StringSliceVar(&c.Servers, "server", []string{rollout.Stock, rollout.Larder}, "which servers, in turn")
	return cmd
}

func runRollout(cmd *cobra.Command, o *options, c rollout.Config) (err error) {
	const why = "it starts the servers itself, and does what it is told"
	if err := refuse(cmd, why, "kubeconfig", "pid", "etcd-pid", "http2-streams", "timeout", "retry-after", "series"); err != nil {
		return err
	}
	if len(o.thresholds.Bounds) > 0 {
		return errors.New("rollout judges no thresholds")
	}
	c.Rounds = o.rounds
	if err := c.Check(); err != nil {
		return err
	}
	if c.Programs, err = rollout.FindPrograms(c.Programs); err != nil {
		return err
	}
	old, err := o.before(c.Names())
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "larder-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	found := &report.Report{}
	build := &step{}
	err = o.shown(cmd, build.Progress, func(ctx context.Context, say func(string)) (err error) {
		c.Say = say
		if c.Fleet, err = fleet.Build(ctx, c.Fleet, dir, build.building(say)); err != nil {
			return err
		}
		c.Fleet.Dir = filepath.Join(dir, "run")
		if err := os.Mkdir(c.Fleet.Dir, 0o700); err != nil {
			return err
		}
		found.Results, err = rollout.Run(ctx, c)
		return err
	})
	return o.conclude(cmd, found, old, err)
}
