package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/larder-io/larder/bench/report"
	"github.com/larder-io/larder/bench/starts"
)

func startsCommand(o *options) *cobra.Command {
	c, markdown := starts.Config{}, ""
	cmd := &cobra.Command{
		Use: "starts", GroupID: judging, Short: "Start Larder and kube-apiserver on stored objects of several kinds", Args: cobra.NoArgs,
		Long: `For each kind of data: start an etcd, write the objects into it, and start a stock
kube-apiserver and Larder over it in turns, --rounds times; and print what each start took
until the server is ready, and until the first list of all objects has been received.
Programs that are not given are built, inside Larder's source tree. docs/bench.md says what
the data are.`,
		Example: `  larder-bench starts --objects 5000 --data shared,own
  larder-bench starts --rounds 3 --markdown table.md --json starts.json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.table(cmd, &c.Trials, markdown, func(ctx context.Context, r *report.Report) (string, error) {
				t, err := starts.Run(ctx, c)
				if t == nil || len(t.Results) == 0 {
					return "", err
				}
				r.Starts = t
				return t.Markdown(), err
			})
		},
	}
	addTrials(cmd, &c.Trials)
	flags := cmd.Flags()
	flags.StringSliceVar(&c.Data, "data", starts.Names(), "kinds of data")
	flags.IntVar(&c.Objects, "objects", 50000, "how many objects of each kind there are")
	flags.StringVar(&markdown, "markdown", "", "file to write the table to, as Markdown")
	return cmd
}
