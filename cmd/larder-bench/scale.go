package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/report"
	"github.com/larder-io/larder/bench/scale"
	"github.com/larder-io/larder/bench/testservers"
)

// scaling are the flags of scale.
type scaling struct {
	config   scale.Config
	programs testservers.Config
	server   string
	through  string
}

func scaleCommand(o *options) *cobra.Command {
	s := &scaling{config: scale.Config{Idle: time.Second}}
	cmd := &cobra.Command{
		Use: "scale", GroupID: judging, Short: "See how costs grow with objects and watchers", Args: cobra.NoArgs,
		Long: `Measure the server's CPU time per item of a LIST, per delivery to a watcher and per write
against the number of pods and of watchers, and plot it. Pods that are missing are made.

Without --kubeconfig, etcd, the server that --server names, and a Larder through which
changes are made, are started for it and stopped at the end.`,
		Example: `  larder-bench scale --json scale.json
  larder-bench scale --sizes 1000,10000,50000,200000 --server kube-apiserver --stock ./kube-apiserver
  larder-bench scale --kubeconfig admin.kubeconfig --pid $(pidof larder) --watchers 10,100`,
		RunE: func(cmd *cobra.Command, _ []string) error { return s.run(cmd, o) },
	}
	flags := cmd.Flags()
	flags.IntSliceVar(&s.config.Sizes, "sizes", []int{1000, 10000, 50000}, "numbers of pods")
	flags.IntSliceVar(&s.config.Watchers, "watchers", []int{10, 100, 1000, 10000}, "numbers of watchers")
	flags.IntVar(&s.config.Rounds, "rounds", 3, "how often each is measured; the least counts")
	flags.IntVar(&s.config.Items, "items", 50000, "how many items or deliveries one measurement has, about")
	flags.StringVar(&s.through, "through", "", "kubeconfig of another server of the same etcd, to make changes through")
	flags.StringVar(&s.server, "server", "larder", "without --kubeconfig: the server to measure, larder or kube-apiserver")
	addPrograms(cmd, &s.programs)
	return cmd
}

func (s *scaling) run(cmd *cobra.Command, o *options) error {
	if err := refuse(cmd, "its results are plots of many workloads", "baseline", "series"); err != nil {
		return err
	}
	for _, b := range o.thresholds.Bounds {
		if b.Of != "" {
			return fmt.Errorf("--%s %s=…: scale has no kinds of requests", b.Figure.Name, b.Of)
		}
	}
	if s.server != "larder" && s.server != "kube-apiserver" {
		return fmt.Errorf("--server must be larder or kube-apiserver, not %q", s.server)
	}
	var found *scale.Findings
	var running atomic.Pointer[scale.Config]
	progress := func() bench.Progress {
		if c := running.Load(); c != nil {
			return c.Progress()
		}
		return bench.Progress{}
	}
	measure := func(ctx context.Context, say func(string)) (err error) {
		s.config.Say = say
		running.Store(&s.config)
		found, err = scale.Run(ctx, s.config)
		return err
	}
	var err error
	if o.kubeconfig != "" {
		if err = s.find(o); err == nil {
			err = o.shown(cmd, progress, measure)
		}
	} else {
		if s.server == "larder" && s.programs.Stock == "" {
			s.programs.Stock = os.DevNull // not needed, so not built
		}
		shown := func() (bench.Progress, bool) { p := progress(); return p, p.Name != "" }
		err = o.started(cmd, s.programs, shown, func(ctx context.Context, programs testservers.Config, say func(string)) (err error) {
			say("starting servers")
			servers, err := testservers.New(programs)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, servers.Close()) }()
			if err := s.start(ctx, servers); err != nil {
				return err
			}
			return measure(ctx, say)
		})
	}
	if err != nil {
		return err
	}
	return o.report(cmd, &report.Report{Results: found.Results, Charts: found.Charts}, o.thresholds.Judge(found.Results), nil, nil)
}

// find takes the servers that flags name.
func (s *scaling) find(o *options) (err error) {
	if s.config.Target, err = o.target(); err != nil || s.through == "" {
		return err
	}
	s.config.Through, err = o.other(s.through)
	return err
}

// start starts etcd, the measured server and the one that changes are made through.
func (s *scaling) start(ctx context.Context, servers *testservers.Servers) (err error) {
	if err := servers.StartEtcd(ctx); err != nil {
		return err
	}
	if s.config.Through, err = ready(ctx, servers, testservers.Larder); err != nil {
		return err
	}
	measured := testservers.Larder
	if s.server != "larder" {
		measured = testservers.Stock
	}
	s.config.Target, err = ready(ctx, servers, measured)
	return err
}

// ready starts a server and waits until it is ready.
func ready(ctx context.Context, servers *testservers.Servers, kind string) (*bench.Target, error) {
	server, err := servers.Start(kind, testservers.Usual())
	if err != nil {
		return nil, err
	}
	return server.Target, server.Ready(ctx)
}
