package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/report"
	"github.com/larder-io/larder/bench/testservers"
)

// addPrograms adds the flags of the programs that a command starts itself.
func addPrograms(cmd *cobra.Command, f *testservers.Config) {
	flags := cmd.Flags()
	flags.StringVar(&f.Stock, "stock", "", "kube-apiserver to start; built from bench/buildapiserver if not given")
	flags.StringVar(&f.Larder, "larder", "", "larder to start; built if not given")
	flags.StringVar(&f.Etcd, "etcd", "", "etcd to start; built if not given")
}

// addTrials adds the flags of a command that measures servers in turns.
func addTrials(cmd *cobra.Command, t *testservers.Trials) {
	addPrograms(cmd, &t.TestServers)
	cmd.Flags().StringSliceVar(&t.Servers, "server", []string{testservers.Stock, testservers.Larder}, "which servers are measured, in turns")
}

// needing returns the programs of t, with a stand-in for a kube-apiserver that is neither given
// nor started: to build it takes minutes.
func needing(t *testservers.Trials) testservers.Config {
	programs := t.TestServers
	if programs.Stock == "" && !slices.Contains(t.Servers, testservers.Stock) {
		programs.Stock = os.DevNull
	}
	return programs
}

// trials runs work once its servers can be started.
func (o *options) trials(cmd *cobra.Command, t *testservers.Trials, work func(ctx context.Context) error) error {
	t.Command, t.Rounds = o.invocation(), o.rounds
	return o.started(cmd, needing(t), nil, func(ctx context.Context, programs testservers.Config, say func(string)) error {
		t.TestServers, t.Say = programs, say
		return work(ctx)
	})
}

// table runs work, which measures, adds its table to a report and returns it as Markdown, "" for
// none. What was measured before a failure is reported.
func (o *options) table(cmd *cobra.Command, t *testservers.Trials, markdown string, work func(ctx context.Context, r *report.Report) (string, error)) error {
	if err := o.refuseAll(cmd, "it starts the servers itself, and prints one table"); err != nil {
		return err
	}
	found, text := &report.Report{}, ""
	err := o.trials(cmd, t, func(ctx context.Context) (err error) {
		text, err = work(ctx, found)
		return err
	})
	if text == "" {
		return err
	}
	return errors.Join(err, o.report(cmd, found, nil, nil, err), saveText(markdown, text))
}

// started runs work with what it starts: the programs of f, built unless they are given, and a
// directory, which is removed afterwards. It shows what progress says once that has something to
// say; nil never has.
func (o *options) started(cmd *cobra.Command, f testservers.Config, progress func() (bench.Progress, bool), work func(ctx context.Context, f testservers.Config, say func(string)) error) error {
	dir, err := os.MkdirTemp("", "larder-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	build := &step{}
	shown := func() bench.Progress {
		if progress != nil {
			if p, ok := progress(); ok {
				return p
			}
		}
		return build.Progress()
	}
	return o.shown(cmd, shown, func(ctx context.Context, say func(string)) error {
		f, err := testservers.Build(ctx, f, dir, build.building(say))
		if err != nil {
			return err
		}
		f.Dir = filepath.Join(dir, "run")
		if err := os.Mkdir(f.Dir, 0o700); err != nil {
			return err
		}
		return work(ctx, f, say)
	})
}

// refuseAll returns an error for the flags of a command that starts its servers itself and
// prints a table of its own, and if an output file cannot be written.
func (o *options) refuseAll(cmd *cobra.Command, why string) error {
	if err := refuse(cmd, why, "kubeconfig", "pid", "etcd-pid", "http2-streams", "timeout", "retry-after", "series", "baseline"); err != nil {
		return err
	}
	if len(o.thresholds.Bounds) > 0 {
		return fmt.Errorf("%s judges no thresholds", cmd.Name())
	}
	_, err := o.before(nil)
	return err
}
