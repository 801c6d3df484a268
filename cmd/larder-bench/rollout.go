package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

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
	addTrials(cmd, &c.Trials)
	flags := cmd.Flags()
	flags.StringVar(&c.Programs, "programs", "", "directory of kube-controller-manager, kube-scheduler, kwok and its stage-fast.yaml")
	flags.IntVar(&c.Nodes, "nodes", 100, "how many nodes")
	flags.IntVar(&c.Pods, "pods", 1500, "how many pods, a hundred for each Deployment")
	flags.DurationVar(&c.Rest, "rest", 20*time.Second, "how long nothing is done between the update and the deletion")
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
	found := &report.Report{}
	err = o.trials(cmd, &c.Trials, func(ctx context.Context) (err error) {
		found.Results, err = rollout.Run(ctx, c)
		return err
	})
	return o.conclude(cmd, found, old, err)
}
