package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/larder-io/larder/bench/report"
	"github.com/larder-io/larder/bench/starts"
	"github.com/larder-io/larder/bench/testservers"
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
	addPrograms(cmd, &c.config.TestServers)
	flags := cmd.Flags()
	flags.StringSliceVar(&c.config.Data, "data", starts.Names(), "kinds of data")
	flags.IntVar(&c.config.Objects, "objects", 50000, "how many objects of each kind there are")
	flags.StringSliceVar(&c.config.Servers, "server", []string{testservers.Stock, testservers.Larder}, "which servers are started, in turns")
	flags.StringVar(&c.markdown, "markdown", "", "file to write the table to, as Markdown")
	return cmd
}

func (c *starting) run(cmd *cobra.Command, o *options) (err error) {
	const why = "it starts the servers itself, and asks each for one list"
	if err := o.refuseAll(cmd, why); err != nil {
		return err
	}
	c.config.Command, c.config.Rounds = o.invocation(), o.rounds
	var table *starts.Table
	err = o.started(cmd, needing(c.config.TestServers, c.config.Servers), nil, func(ctx context.Context, f testservers.Config, say func(string)) (err error) {
		c.config.TestServers, c.config.Say = f, say
		table, err = starts.Run(ctx, c.config)
		return err
	})
	if table == nil || len(table.Results) == 0 {
		return err
	}
	// What was measured before a failure is worth having.
	return errors.Join(err, o.report(cmd, &report.Report{Starts: table}, nil, nil, err), saveText(c.markdown, table.Markdown()))
}
