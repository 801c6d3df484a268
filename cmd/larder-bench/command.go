package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/process"
	"github.com/larder-io/larder/bench/report"
)

// options are the flags that every workload shares.
type options struct {
	kubeconfig   string
	pid, etcdPID int
	clients      int
	streams      int
	rate         float64
	quiet        bool
	json, html   string
	thresholds   bench.Thresholds
}

// Groups of commands, as --help shows them.
const (
	preparing = "preparing"
	reading   = "reading"
	watching  = "watching"
	writing   = "writing"
	whole     = "whole"
	judging   = "judging"
)

func command() *cobra.Command {
	o := &options{}
	root := &cobra.Command{
		Use:   "larder-bench",
		Short: "Put load on a Kubernetes API server and say what it cost",
		Long: `Put load on a Kubernetes API server and say what it cost.

Workloads run against any server that --kubeconfig names. With --pid, the server's
CPU time, memory and system calls are accounted too; that is the figure to compare,
for wall times tell as much of the machine. Loops are closed unless --rate is given:
then each request has a time at which it should begin, and its latency counts from there.

The exit status is 1 when something failed, and 2 when a threshold was crossed.`,
		Example: `  larder-bench seed --kubeconfig admin.kubeconfig --pods 10000
  larder-bench read /api/v1/pods --pid $(pidof larder) --requests 40
  larder-bench read /api/v1/namespaces/bench-0/pods --rate 200 --clients 16 --requests 2000 --max-p99 20ms
  larder-bench watch --watchers 200 --rate 50 --html watch.html
  larder-bench compare --rounds 3 --json compare.json --html compare.html`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	o.add(root.PersistentFlags())
	for _, g := range []cobra.Group{
		{ID: preparing, Title: "Prepare:"}, {ID: reading, Title: "Read:"}, {ID: watching, Title: "Watch:"},
		{ID: writing, Title: "Write:"}, {ID: whole, Title: "Load as a whole:"}, {ID: judging, Title: "Compare and scale:"},
	} {
		root.AddGroup(&g)
	}
	root.AddCommand(
		seedCommand(o), customCommand(o), readCommand(o), watchListCommand(o), informerCommand(o), watchCommand(o), openCommand(o), stormCommand(o),
		writeCommand(o), componentsCommand(o), mixedCommand(o), slowCommand(o), startCommand(o), compareCommand(o), scaleCommand(o), limitCommand(),
	)
	return root
}

func (o *options) add(flags *pflag.FlagSet) {
	flags.StringVar(&o.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "kubeconfig of the server under load")
	flags.IntVar(&o.pid, "pid", 0, "process id of the server, if it runs on this machine: its CPU and memory are accounted")
	flags.IntVar(&o.etcdPID, "etcd-pid", 0, "process id of the server's etcd: its CPU is reported beside the server's")
	flags.IntVar(&o.clients, "clients", 1, "requests under way at a time")
	flags.IntVar(&o.streams, "http2-streams", 0, "ask by HTTP/2, with as many requests at once on a connection (100 are usual); 0 asks by HTTP/1.1")
	flags.Float64Var(&o.rate, "rate", 0, "requests per second of all clients (open loop); 0 sends as fast as answers come (closed loop)")
	flags.BoolVarP(&o.quiet, "quiet", "q", false, "show no progress")
	flags.StringVar(&o.json, "json", "", "file to write all results to, as JSON")
	flags.StringVar(&o.html, "html", "", "file to write a report with plots to, as HTML that needs nothing beside itself")
	t := &o.thresholds
	flags.DurationVar(&t.MaxP50, "max-p50", 0, "threshold: median latency")
	flags.DurationVar(&t.MaxP99, "max-p99", 0, "threshold: latency that 99 of 100 keep")
	flags.DurationVar(&t.MaxLatency, "max-latency", 0, "threshold: longest latency")
	flags.DurationVar(&t.MaxCPUPerOp, "max-cpu-per-op", 0, "threshold: server CPU time per operation; needs --pid")
	flags.IntVar(&t.MaxErrors, "max-errors", 0, "threshold: operations that may fail; -1 for any number")
	flags.Float64Var(&t.MinRate, "min-rate", 0, "threshold: least operations per second")
	flags.Int64Var(&t.MaxRSS, "max-rss", 0, "threshold: the server's resident bytes afterwards; needs --pid")
	flags.Int64Var(&t.MaxPeakRSS, "max-peak-rss", 0, "threshold: the server's resident bytes at any time; needs --pid")
}

// target is the server under load.
func (o *options) target() (*bench.Target, error) {
	if o.kubeconfig == "" {
		return nil, errors.New("which server? --kubeconfig or KUBECONFIG must name a kubeconfig")
	}
	target, err := bench.NewTarget(o.kubeconfig)
	if err != nil {
		return nil, err
	}
	if o.streams > 0 {
		target.UseHTTP2(o.streams)
	}
	target.Process = process.Process{Name: "server", PID: o.pid}
	if o.etcdPID != 0 {
		target.Beside = []process.Process{{Name: "etcd", PID: o.etcdPID}}
	}
	return target, nil
}

// workload runs against a target and returns what it found.
type workload func(ctx context.Context, t *bench.Target) ([]*bench.Result, error)

// only makes a list of one result.
func only(r *bench.Result, err error) ([]*bench.Result, error) {
	return []*bench.Result{r}, err
}

// run runs a workload against the target, shows its progress and reports.
func (o *options) run(cmd *cobra.Command, w workload) error {
	target, err := o.target()
	if err != nil {
		return err
	}
	var results []*bench.Result
	err = o.shown(cmd, target.Progress, func(ctx context.Context, _ func(string)) error {
		var err error
		results, err = w(ctx, target)
		return err
	})
	if err != nil {
		return err
	}
	return o.report(cmd, &report.Report{Results: results})
}

// report writes a report wherever it is wanted, and returns an error if a threshold
// is crossed.
func (o *options) report(cmd *cobra.Command, r *report.Report) error {
	r.Title, r.Command, r.Machine, r.Date = "larder-bench "+cmd.Name(), invocation(), bench.Machine(), time.Now()
	if err := r.Text(cmd.OutOrStdout()); err != nil {
		return err
	}
	for _, out := range []struct {
		file  string
		write func(io.Writer) error
	}{{o.json, r.JSON}, {o.html, r.HTML}} {
		if err := toFile(out.file, out.write); err != nil {
			return err
		}
	}
	return o.thresholds.Check(r.Results...)
}

// toFile writes a file, if it has a name.
func toFile(name string, write func(io.Writer) error) error {
	if name == "" {
		return nil
	}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	if err := errors.Join(write(f), f.Close()); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// invocation is the command line, without the directory of the program.
func invocation() string {
	return strings.Join(append([]string{"larder-bench"}, os.Args[1:]...), " ")
}
