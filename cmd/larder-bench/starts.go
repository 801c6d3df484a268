package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/larder-io/larder/bench/fleet"
	"github.com/larder-io/larder/bench/report"
	"github.com/larder-io/larder/bench/starts"
)

// starting are the flags of starts.
type starting struct {
	config   starts.Config
	markdown string
}

func startsCommand(o *options) *cobra.Command {
	c := &starting{}
	cmd := &cobra.Command{
		Use: "starts", GroupID: judging, Short: "Start Larder and kube-apiserver on stored objects of several kinds", Args: cobra.NoArgs,
		Long: `For each kind of data: start an etcd, write the objects into it, and start a stock
kube-apiserver and Larder over it in turns, --rounds times; and print what each start took
until the server is ready, and until the first list of all objects has been received.
Programs that are not given are built, inside Larder's source tree. docs/bench.md says what
the data are.`,
		Example: `  larder-bench starts --objects 5000 --data shared,own
  larder-bench starts --rounds 3 --markdown table.md --json starts.json`,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.run(cmd, o) },
	}
	flags, f := cmd.Flags(), &c.config.Fleet
	flags.StringVar(&f.Stock, "stock", "", "kube-apiserver to start; built from bench/stock if not given")
	flags.StringVar(&f.Larder, "larder", "", "larder to start; built if not given")
	flags.StringVar(&f.Etcd, "etcd", "", "etcd to start; built if not given")
	flags.StringSliceVar(&c.config.Data, "data", starts.Names(), "kinds of data")
	flags.IntVar(&c.config.Objects, "objects", 50000, "how many objects of each kind there are")
	flags.StringSliceVar(&c.config.Servers, "server", []string{starts.Stock, starts.Larder}, "which servers are started, in turns")
	flags.StringVar(&c.markdown, "markdown", "", "file to write the table to, as Markdown")
	return cmd
}

func (c *starting) run(cmd *cobra.Command, o *options) (err error) {
	const why = "it starts the servers itself, and asks each for one list"
	if err := refuse(cmd, why, "kubeconfig", "pid", "etcd-pid", "http2-streams", "timeout", "retry-after", "series", "baseline", "benchstat", "junit", "html"); err != nil {
		return err
	}
	if len(o.thresholds.Bounds) > 0 {
		return errors.New("starts judges no thresholds")
	}
	if _, err := o.before(nil); err != nil {
		return err
	}
	c.config.Command, c.config.Rounds = o.invocation(), o.rounds
	dir, err := os.MkdirTemp("", "larder-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var table *starts.Table
	build := &step{}
	err = o.shown(cmd, build.Progress, func(ctx context.Context, say func(string)) (err error) {
		c.config.Say = say
		if c.config.Fleet, err = fleet.Build(ctx, c.config.Fleet, dir, build.building(say)); err != nil {
			return err
		}
		c.config.Fleet.Dir = filepath.Join(dir, "run")
		if err := os.Mkdir(c.config.Fleet.Dir, 0o700); err != nil {
			return err
		}
		table, err = starts.Run(ctx, c.config)
		return err
	})
	if table == nil || len(table.Results) == 0 {
		return err
	}
	// What was measured before a failure is worth having.
	return errors.Join(err, o.report(cmd, &report.Report{Starts: table}, nil, nil, err), toFile(c.markdown, func(w io.Writer) error {
		_, err := io.WriteString(w, table.Markdown())
		return err
	}))
}
