package main

import (
	"context"
	goflag "flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/term"
	"k8s.io/klog/v2"

	"github.com/larder-io/larder/internal/server"
)

func newServe() *cobra.Command {
	o := newOptions(server.Default())
	o.scratch = true
	return serving(o, &cobra.Command{
		Use:   "serve",
		Short: "Run the API server",
		Long: `Run a Kubernetes API server.

Without flags it listens on the loopback address, keeps its objects in an etcd of
its own in ./larder-data, makes the certificates it needs, writes a kubeconfig for
its administrator there, and lets others do what RBAC allows.
Flags that kube-apiserver has as well mean what they mean there.`,
	})
}

// upstreamName is the name under which this program has upstream's defaults.
const upstreamName = "kube-apiserver"

func newUpstream() *cobra.Command {
	return serving(newOptions(server.DefaultUpstream()), &cobra.Command{
		Use:   upstreamName,
		Short: "Run the API server with kube-apiserver's defaults",
		Long: `Run Larder, a Kubernetes API server, with kube-apiserver's defaults.

Nothing is written but what flags name, and a serving certificate in --cert-dir.`,
		SilenceUsage: true, SilenceErrors: true,
	})
}

// serving makes cmd run a server as o says.
func serving(o *options, cmd *cobra.Command) *cobra.Command {
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return serve(cmd, o) }
	o.addTo(cmd.Flags())
	cliflag.SetUsageAndHelpFunc(cmd, o.sections, columns(os.Stdout))
	return cmd
}

func serve(cmd *cobra.Command, o *options) error {
	config := o.complete(cmd.Flags().Changed)
	config.Die = func(err error) { os.Exit(fail(cmd.ErrOrStderr(), err)) }
	config.SteerCollector = os.Getenv("GOGC") == ""
	if !o.quiet {
		config.Progress = cmd.ErrOrStderr()
		config.Terminal = isTerminal(cmd.ErrOrStderr())
	}
	s, err := server.New(config)
	if err != nil {
		return err
	}
	if err := setLogging(cmd.Flags()); err != nil {
		return err
	}
	setMemory(os.Getenv)
	ctx, stop := untilSignal()
	defer stop()
	return s.Run(ctx)
}

// untilSignal returns a context that the first SIGTERM or SIGINT ends. The second
// ends the process.
func untilSignal() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	context.AfterFunc(ctx, stop) // gives the signals back to their default
	return ctx, stop
}

// setLogging silences the informational lines of libraries, unless they were
// asked for.
func setLogging(fs *pflag.FlagSet) error {
	if fs.Changed("v") || fs.Changed("vmodule") {
		return nil
	}
	all := goflag.NewFlagSet("klog", goflag.ContinueOnError)
	klog.InitFlags(all)
	for name, value := range map[string]string{"logtostderr": "false", "one_output": "true", "stderrthreshold": "FATAL"} {
		if err := all.Set(name, value); err != nil {
			return fmt.Errorf("log: %w", err)
		}
	}
	klog.SetOutputBySeverity("INFO", io.Discard)
	for _, severity := range []string{"WARNING", "ERROR", "FATAL"} {
		klog.SetOutputBySeverity(severity, uncommon{os.Stderr})
	}
	return nil
}

// columns is the width to wrap help at.
func columns(out *os.File) int {
	const unknown = 100
	if width, _, err := term.TerminalSize(out); err == nil && width > 0 {
		return width
	}
	return unknown
}

func isTerminal(w io.Writer) bool {
	_, _, err := term.TerminalSize(w)
	return err == nil
}
