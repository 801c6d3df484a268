package main

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/larder-io/larder/bench/definitions"
	"github.com/larder-io/larder/bench/testservers"
)

// defining are the flags of crds.
type defining struct {
	config   definitions.Config
	markdown string
}

func definitionsCommand(o *options) *cobra.Command {
	c := &defining{}
	cmd := &cobra.Command{
		Use: "crds", GroupID: judging, Short: "Measure what definitions of custom resources cost", Args: cobra.NoArgs,
		Long: `Start etcd, and in turn a stock kube-apiserver and Larder, each over an etcd of its own;
make so many definitions of custom resources; and print what it costs the server until they are
served and described, and what memory each of them takes, idle and in use. Programs that are not
given are built, inside Larder's source tree.`,
		Example: `  larder-bench crds --count 300
  larder-bench crds --count 10000 --server Larder --used=false`,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.run(cmd, o) },
	}
	addPrograms(cmd, &c.config.TestServers)
	flags := cmd.Flags()
	flags.IntVar(&c.config.Count, "count", 300, "how many definitions")
	flags.IntVar(&c.config.PerGroup, "per-group", 10, "how many definitions share a group")
	flags.IntVar(&c.config.Fields, "fields", 20, "how many fields each has")
	flags.IntVar(&c.config.Clients, "clients", 4, "how many requests are under way at a time")
	flags.BoolVar(&c.config.Used, "used", true, "make and read an object of each")
	flags.StringSliceVar(&c.config.Servers, "server", []string{testservers.Stock, testservers.Larder}, "which servers are asked, in turn")
	flags.StringVar(&c.config.Profiles, "profiles", "", "directory to write profiles of the servers to, of each step")
	flags.StringVar(&c.markdown, "markdown", "", "file to write the table to, as Markdown")
	return cmd
}

func (c *defining) run(cmd *cobra.Command, o *options) (err error) {
	const why = "it starts the servers itself, and prints one table"
	if err := o.refuseAll(cmd, why, "json"); err != nil {
		return err
	}
	c.config.Command, c.config.Rounds = o.invocation(), o.rounds
	var table *definitions.Table
	err = o.started(cmd, needing(c.config.TestServers, c.config.Servers), nil, func(ctx context.Context, f testservers.Config, say func(string)) (err error) {
		c.config.TestServers, c.config.Say = f, say
		table, err = definitions.Run(ctx, c.config)
		return err
	})
	if table == nil || len(table.Results) == 0 {
		return err
	}
	// What was measured before a failure is worth having.
	_, printed := io.WriteString(cmd.OutOrStdout(), table.Markdown())
	return errors.Join(err, printed, saveText(c.markdown, table.Markdown()))
}
