package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/larder-io/larder/bench/definitions"
	"github.com/larder-io/larder/bench/report"
)

func definitionsCommand(o *options) *cobra.Command {
	c, markdown := definitions.Config{}, ""
	cmd := &cobra.Command{
		Use: "crds", GroupID: judging, Short: "Measure what definitions of custom resources cost", Args: cobra.NoArgs,
		Long: `Start etcd, and in turn a stock kube-apiserver and Larder, each over an etcd of its own;
make so many definitions of custom resources; and print what it costs the server until they are
served and described, and what memory each of them takes, idle and in use. Programs that are not
given are built, inside Larder's source tree.`,
		Example: `  larder-bench crds --count 300
  larder-bench crds --count 10000 --server Larder --used=false`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.table(cmd, &c.Trials, markdown, func(ctx context.Context, r *report.Report) (string, error) {
				t, err := definitions.Run(ctx, c)
				if t == nil || len(t.Results) == 0 {
					return "", err
				}
				r.Definitions = t
				return t.Markdown(), err
			})
		},
	}
	addTrials(cmd, &c.Trials)
	flags := cmd.Flags()
	flags.IntVar(&c.Count, "count", 300, "how many definitions")
	flags.IntVar(&c.PerGroup, "per-group", 10, "how many definitions share a group")
	flags.IntVar(&c.Fields, "fields", 20, "how many fields each has")
	flags.IntVar(&c.Clients, "clients", 4, "how many requests are under way at a time")
	flags.BoolVar(&c.Used, "used", true, "make and read an object of each")
	flags.StringVar(&c.Profiles, "profiles", "", "directory to write profiles of the servers to, of each step")
	flags.StringVar(&markdown, "markdown", "", "file to write the table to, as Markdown")
	return cmd
}
