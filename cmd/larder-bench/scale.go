package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
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
	flags.StringVar(&s.programs.Stock, "stock", "", "kube-apiserver to start; built from bench/buildapiserver if not given")
	flags.StringVar(&s.programs.Larder, "larder", "", "larder to start; built if not given")
	flags.StringVar(&s.programs.Etcd, "etcd", "", "etcd to start; built if not given")
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
	progress, build := &latest{}, &step{}
	shown := func() bench.Progress {
		if p := build.Progress(); p.Name != "" {
			return p
		}
		return progress.Progress()
	}
	err := o.shown(cmd, shown, func(ctx context.Context, say func(string)) (err error) {
		s.config.Say = say
		stop := func() error { return nil }
		if o.kubeconfig == "" {
			stop, err = s.start(ctx, say, build.building(say))
		} else {
			err = s.find(o)
		}
		defer func() {
			if failed := stop(); err == nil {
				err = failed
			}
		}()
		if err != nil {
			return err
		}
		progress.set(s.config.Target, s.config.Through)
		found, err = scale.Run(ctx, s.config)
		return err
	})
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

// start starts servers and returns what stops them.
func (s *scaling) start(ctx context.Context, say func(string), building func(string, bool)) (stop func() error, err error) {
	dir, err := os.MkdirTemp("", "larder-bench-")
	if err != nil {
		return func() error { return nil }, err
	}
	stop = func() error { return os.RemoveAll(dir) }
	if s.server == "larder" && s.programs.Stock == "" {
		s.programs.Stock = os.DevNull // not needed, so not built
	}
	if s.programs, err = testservers.Build(ctx, s.programs, dir, building); err != nil {
		return stop, err
	}
	s.programs.Dir = filepath.Join(dir, "run")
	if err := os.Mkdir(s.programs.Dir, 0o700); err != nil {
		return stop, err
	}
	servers, err := testservers.New(s.programs)
	if err != nil {
		return stop, err
	}
	stop = func() error {
		if err := servers.Close(); err != nil {
			return err
		}
		return os.RemoveAll(dir)
	}
	say("starting servers")
	if err := servers.StartEtcd(ctx); err != nil {
		return stop, err
	}
	s.config.Through, err = ready(ctx, servers.StartLarder)
	if err != nil {
		return stop, err
	}
	measured := servers.StartLarder
	if s.server != "larder" {
		measured = servers.StartStock
	}
	s.config.Target, err = ready(ctx, measured)
	return stop, err
}

// ready starts a server and waits until it is ready.
func ready(ctx context.Context, start func() (*testservers.Server, error)) (*bench.Target, error) {
	server, err := start()
	if err != nil {
		return nil, err
	}
	return server.Target, server.Ready(ctx)
}
