package main

import (
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/report"
	"github.com/larder-io/larder/bench/testservers"
)

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
		old, err := o.before(nil)
		if err != nil {
			return err
		}
		found := &report.Report{Pairs: true}
		err = o.started(cmd, needing(t), func(ctx context.Context, programs testservers.Config, say func(string)) (err error) {
			t.TestServers, t.Say = programs, say
			found.Results, err = run(ctx)
			return err
		})
		if o.rounds > 1 {
			for _, each := range bench.Rounds(found.Results) {
				for i, r := range each {
					r.Round = i + 1
				}
			}
		}
		return o.conclude(cmd, found, old, err)
	}
	return cmd
}

// needing returns the programs of t. It names a placeholder for a kube-apiserver that is neither given nor
// measured, because building one takes minutes.
func needing(t *testservers.Trials) testservers.Config {
	programs := t.TestServers
	if programs.Stock == "" && !slices.Contains(t.Servers, testservers.Stock) {
		programs.Stock = os.DevNull
	}
	return programs
}

// started builds the programs that f does not name, and runs work with them in a temporary directory.
func (o *options) started(cmd *cobra.Command, f testservers.Config, work func(ctx context.Context, f testservers.Config, say func(string)) error) error {
	dir, err := os.MkdirTemp("", "larder-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	return o.shown(cmd, nil, func(ctx context.Context, say func(string)) error {
		f, err := testservers.Build(ctx, f, dir, say)
		if err != nil {
			return err
		}
		f.Dir = dir
		return work(ctx, f, say)
	})
}
