package main

import (
	"context"
	"fmt"
	"net"
	"regexp"

	"github.com/spf13/cobra"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/baseline"
	"github.com/larder-io/larder/bench/compare"
	"github.com/larder-io/larder/bench/report"
)

func compareCommand(o *options) *cobra.Command {
	c, rows := &compare.Config{}, ""
	c.Servers = []string{compare.Stock, compare.Larder}
	cmd := &cobra.Command{
		Use: "compare", GroupID: judging, Short: "Compare Larder with kube-apiserver and a bare TLS server", Args: cobra.NoArgs,
		Long: `Start etcd, Larder, kube-apiserver, and a bare TLS server that sends Larder's responses from memory
(the limit). Seed pods, run every row on each server in turn, --rounds times, and print the table.
Programs that are not given are built, inside Larder's source tree. All servers listen on loopback
and are stopped at the end.`,
		Example: `  larder-bench compare --quick
  larder-bench compare --rounds 5 --start-pods 50000 --markdown table.md --json table.json
  larder-bench compare --rows 'WatchList|^B1 ' --stock ./kube-apiserver --etcd ./etcd --larder ./larder`,
		RunE: func(cmd *cobra.Command, _ []string) error { return runComparison(cmd, o, c, rows) },
	}
	addPrograms(cmd, &c.TestServers)
	flags := cmd.Flags()
	flags.IntVar(&c.Pods, "pods", 10000, "number of pods for reads and watches")
	flags.IntVar(&c.StartPods, "start-pods", 0, "number of pods for starts, if more than --pods; each takes about 5 ms to create")
	flags.IntVar(&c.Watchers, "watchers", 0, "number of watches in each row of watches; 0 uses the row's own number")
	flags.IntVar(&c.Rounds, "rounds", 3, "number of runs on each server; the best counts")
	flags.StringVar(&rows, "rows", "", "regular expression of the rows to run, by id and name")
	flags.BoolVar(&c.Quick, "quick", false, "check that everything works: few operations, and 1,000 pods and one round unless --pods and --rounds are given")
	flags.StringVar(&o.outputs.markdown, "markdown", "", "file to write the table to, as Markdown")
	return cmd
}

func runComparison(cmd *cobra.Command, o *options, c *compare.Config, rows string) (err error) {
	if c.Rows, err = regexp.Compile(rows); err != nil {
		return fmt.Errorf("--rows: %w", err)
	}
	const why = "it starts the servers itself, and each row defines its requests"
	if err := refuse(cmd, why, "kubeconfig", "pid", "etcd-pid", "timeout", "retry-after", "series", "as", "token"); err != nil {
		return err
	}
	if c.Quick && !cmd.Flags().Changed("pods") {
		c.Pods = 1000
	}
	if c.Quick && !cmd.Flags().Changed("rounds") {
		c.Rounds = 1
	}
	comparison, err := compare.New(c)
	if err != nil {
		return err
	}
	o.rounds = c.Rounds
	old, err := o.checkRows(comparison.IDs())
	if err != nil {
		return err
	}
	c.TestServers.Streams = o.streams
	found := &report.Report{}
	err = o.started(cmd, &c.Trials, func(ctx context.Context) (err error) {
		found.Table, err = comparison.Run(ctx)
		return err
	})
	return o.finish(cmd, found, old, err)
}

// checkRows validates the flags and returns the results of the baseline. It runs before the programs are built.
func (o *options) checkRows(ids []string) ([]*bench.Result, error) {
	for _, b := range o.thresholds.Bounds {
		if b.Of == "" && b.Figure.Default < 0 {
			return nil, fmt.Errorf("--%s cannot bound all rows of compare: name one, as in --%s %s=…", b.Figure.Name, b.Figure.Name, ids[0])
		}
	}
	if err := o.thresholds.Check(named(ids...)); err != nil {
		return nil, err
	}
	var names []string
	for _, id := range ids {
		names = append(names, id+" "+compare.Larder)
	}
	return o.prepare(names)
}

// limitCommand returns the command of the limit, which compare starts as a separate process of this program.
func limitCommand() *cobra.Command {
	tape, port := "", ""
	cmd := &cobra.Command{
		Use: "limit", Hidden: true, Short: "Serve recorded responses as cheaply as possible", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			recorded, err := baseline.Load(tape)
			if err != nil {
				return err
			}
			l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port))
			if err != nil {
				return err
			}
			return baseline.New(recorded).Run(cmd.Context(), l)
		},
	}
	cmd.Flags().StringVar(&tape, "tape", "", "file of the responses")
	cmd.Flags().StringVar(&port, "port", "0", "port to listen on")
	return cmd
}
