package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/testservers"
)

// addPrograms adds the flags of the programs that a command starts itself.
func addPrograms(cmd *cobra.Command, f *testservers.Config) {
	flags := cmd.Flags()
	flags.StringVar(&f.Stock, "stock", "", "kube-apiserver to start; built from bench/buildapiserver if not given")
	flags.StringVar(&f.Larder, "larder", "", "larder to start; built if not given")
	flags.StringVar(&f.Etcd, "etcd", "", "etcd to start; built if not given")
}

// needing returns f with a stand-in for a kube-apiserver that is not given, where servers, those
// that are asked, say that none is started: to build one takes minutes.
func needing(f testservers.Config, servers []string) testservers.Config {
	if f.Stock == "" && !slices.Contains(servers, testservers.Stock) {
		f.Stock = os.DevNull
	}
	return f
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
// prints a table of its own, and for others that it does not heed; and if it could not write what
// it is to write.
func (o *options) refuseAll(cmd *cobra.Command, why string, others ...string) error {
	flags := append([]string{"kubeconfig", "pid", "etcd-pid", "http2-streams", "timeout", "retry-after", "series", "baseline"}, others...)
	if err := refuse(cmd, why, flags...); err != nil {
		return err
	}
	if len(o.thresholds.Bounds) > 0 {
		return fmt.Errorf("%s judges no thresholds", cmd.Name())
	}
	_, err := o.before(nil)
	return err
}
