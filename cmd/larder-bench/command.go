package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/process"
	"github.com/larder-io/larder/bench/thresholds"
)

// options holds the flags that workloads share, and the arguments of the program.
type options struct {
	args []string // the program's arguments

	kubeconfig   string
	pid, etcdPID int
	streams      int
	timeout      time.Duration
	retryAfter   bool
	quiet        bool

	rounds     int
	outputs    outputs
	thresholds thresholds.Thresholds
	baseline   string
	regression float64

	as, token string
	asGroups  []string

	capture func(kinds []*bench.Result, w workload) // unless nil, receives the workload instead of running it
}

type outputs struct{ json, series, markdown string }

// Groups of commands, as --help shows them.
const (
	preparing = "preparing"
	reading   = "reading"
	watching  = "watching"
	writing   = "writing"
	whole     = "whole"
	judging   = "judging"
)

// command returns the program for its arguments.
func command(args []string) *cobra.Command {
	o := &options{args: args}
	root := &cobra.Command{
		Use:   "larder-bench",
		Short: "Put load on a Kubernetes API server and report its cost",
		Long: `Put load on a Kubernetes API server and report its cost.

Workloads run against any server that --kubeconfig names. With --pid, the report has the server's CPU
time, memory and system calls. Compare servers by these figures, because latencies depend as much on
the machine. With --rate, or rates in --stages, the loop is open: each request is due at a fixed time,
and its latency counts from then. Otherwise the loop is closed. The first Ctrl-C ends a run and prints
the results so far, the second ends it at once. A threshold KIND=BOUND applies to one kind of request:
--max-p99 list=200ms.

The exit status is 1 when something failed, 2 when a threshold was crossed or a figure
is worse than the baseline's, and 130 when the run was interrupted.`,
		Example: `  larder-bench seed --kubeconfig admin.kubeconfig --pods 10000
  larder-bench read /api/v1/pods --pid $(pidof larder) --requests 40
  larder-bench read /api/v1/namespaces/bench-0/pods --stages 10s:0..200/s,1m:200/s --clients 16 --max-p99 20ms
  larder-bench mixed --rate 300 --duration 1m --clients 32 --max-p99 list=100ms --series mixed.csv
  larder-bench compare --rounds 3 --json compare.json --markdown compare.md`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetArgs(args)
	o.add(root.PersistentFlags())
	for _, g := range []cobra.Group{
		{ID: preparing, Title: "Prepare:"}, {ID: reading, Title: "Read:"}, {ID: watching, Title: "Watch:"},
		{ID: writing, Title: "Write:"}, {ID: whole, Title: "Load as a whole:"}, {ID: judging, Title: "Compare:"},
	} {
		root.AddGroup(&g)
	}
	root.AddCommand(
		seedCommand(o), scenarioCommand(o), compareCommand(o), clusterCommand(o), rolloutCommand(o), startsCommand(o), besideCommand(o), crdsCommand(o), limitCommand(),
	)
	root.AddCommand(workloadCommands(o)...)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w; %s --help lists the flags", err, cmd.CommandPath())
	})
	for _, cmd := range root.Commands() {
		check := cmd.Args
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return fmt.Errorf("%w; usage: %s", err, cmd.UseLine())
			}
			return nil
		}
	}
	return root
}

func (o *options) add(flags *pflag.FlagSet) {
	flags.StringVar(&o.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "kubeconfig of the server under load")
	flags.IntVar(&o.pid, "pid", 0, "process id of the server, if it runs on this machine, to report its CPU time and memory")
	flags.IntVar(&o.etcdPID, "etcd-pid", 0, "process id of the server's etcd, to report its CPU time")
	flags.IntVar(&o.streams, "http2-streams", 0, "use HTTP/2 with at most this many concurrent requests on a connection (usually 100); 0 uses HTTP/1.1")
	flags.DurationVar(&o.timeout, "timeout", 0, "cancel requests that take longer, and count them as timeouts; 0 waits forever")
	flags.BoolVar(&o.retryAfter, "retry-after", false, "after a response of 429, wait for its Retry-After and retry; otherwise the request counts as refused")
	flags.IntVar(&o.rounds, "rounds", 1, "number of runs of the workload; the report has their spread, and --baseline needs 4 or more in both runs")
	flags.StringVar(&o.outputs.json, "json", "", "file for all results, as JSON (docs/bench.md describes it)")
	flags.StringVar(&o.outputs.series, "series", "", "file for the rate, failures, p50 and p99 of each second, as CSV")
	flags.StringVar(&o.baseline, "baseline", "", "--json file of an earlier run to compare with")
	flags.Float64Var(&o.regression, "max-regression", 5, "percent by which a figure may be significantly worse than the baseline's; -1 only shows the ratios")
	flags.BoolVarP(&o.quiet, "quiet", "q", false, "show no progress")
	o.addUser(flags)
	for _, f := range thresholds.Figures() {
		flags.Func(f.Name, "`[kind=]bound` of "+f.Help, func(text string) error {
			bound, err := thresholds.ParseBound(f, text)
			o.thresholds.Bounds = append(o.thresholds.Bounds, bound)
			return err
		})
	}
}

func (o *options) addUser(flags *pflag.FlagSet) {
	flags.StringVar(&o.as, "as", "", "user to impersonate; the kubeconfig's user needs the permission")
	flags.StringSliceVar(&o.asGroups, "as-group", nil, "groups of that user")
	flags.StringVar(&o.token, "token", "", "bearer token to send instead of the kubeconfig's")
}

// user returns a Target that sends requests as the user of the flags.
func (o *options) user(t *bench.Target) *bench.Target {
	switch {
	case o.token != "":
		return t.As(o.token)
	case o.as != "":
		return t.Impersonating(o.as, o.asGroups...)
	}
	return t
}

func (o *options) target() (*bench.Target, error) {
	if o.kubeconfig == "" {
		return nil, errors.New("no server: --kubeconfig or KUBECONFIG must name a kubeconfig")
	}
	target, err := o.other(o.kubeconfig)
	if err != nil {
		return nil, err
	}
	target.Series = o.outputs.series != ""
	target.Process = process.Process{Name: "server", PID: o.pid}
	if o.etcdPID != 0 {
		target.Beside = []process.Process{{Name: "etcd", PID: o.etcdPID}}
	}
	return target, nil
}

// other returns another server with the same timeout, protocol and user as the one under load.
func (o *options) other(kubeconfig string) (*bench.Target, error) {
	if o.timeout < 0 || o.streams < 0 {
		return nil, errors.New("--timeout and --http2-streams cannot be negative")
	}
	target, err := bench.NewTarget(kubeconfig)
	if err != nil {
		return nil, err
	}
	if o.streams > 0 {
		target.UseHTTP2(o.streams)
	}
	target.Timeout, target.RetryAfter = o.timeout, o.retryAfter
	return o.user(target), nil
}

// refuse returns an error for a flag that a command ignores.
func refuse(cmd *cobra.Command, why string, flags ...string) error {
	for _, name := range flags {
		if cmd.Flags().Changed(name) {
			return fmt.Errorf("%s does not support --%s: %s", cmd.Name(), name, why)
		}
	}
	return nil
}
