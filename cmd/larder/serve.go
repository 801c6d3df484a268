package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"
	"k8s.io/apiserver/pkg/server/flagz"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"
	metricsfeatures "k8s.io/component-base/metrics/features"
	"k8s.io/component-base/term"
	"k8s.io/klog/v2"

	"github.com/larder-io/larder/cmd/larder/internal/server"
)

func newServe() *cobra.Command {
	o := newOptions(server.Default())
	o.scratch = true
	return serverCommand(o, &cobra.Command{
		Use:   "serve",
		Short: "Run the API server",
		Long: `Run a Kubernetes API server.

Without flags the server listens on the loopback address and authorizes requests by RBAC.
It stores objects in an embedded etcd in ./larder-data, and writes generated certificates
and an administrator's kubeconfig there.
Flags of kube-apiserver have the same meaning here.

With an external etcd, SIGUSR2 upgrades the server in place: it starts the program again,
the new process takes over when it is ready, and the old one drains. See docs/upgrade.md.`,
	})
}

func newDev() *cobra.Command {
	config := server.Default()
	config.TestControllers, config.Checkpoints, config.Faults = true, true, true
	o := newOptions(config)
	o.scratch = true
	return serverCommand(o, &cobra.Command{
		Use:   "dev",
		Short: "Run the API server with the controllers that tests need",
		Long: `Run a Kubernetes API server to develop and test controllers with. It is "larder serve"
with --test-controllers, --checkpoints and --faults.

Its controllers create the default service account and kube-root-ca.crt of each namespace,
empty deleted namespaces, and delete objects whose owners are gone. No other controller
runs: a Deployment creates no pods, and a pod stays pending, without a node.
Do not run it beside a kube-controller-manager.`,
	})
}

// kubeAPIServerName is the program's name that selects kube-apiserver's defaults.
const kubeAPIServerName = "kube-apiserver"

func newKubeAPIServer() *cobra.Command {
	return serverCommand(newOptions(server.DefaultKubeAPIServer()), &cobra.Command{
		Use:   kubeAPIServerName,
		Short: "Run the API server with kube-apiserver's defaults",
		Long: `Run Larder, a Kubernetes API server, with kube-apiserver's defaults.

Apart from files that flags name, it writes only a serving certificate, to --cert-dir.`,
		SilenceUsage: true, SilenceErrors: true,
		Args: func(cmd *cobra.Command, args []string) error { // manifests may have empty arguments
			for _, arg := range args {
				if arg != "" {
					return fmt.Errorf("%q does not take any arguments, got %q", cmd.CommandPath(), args)
				}
			}
			return nil
		},
	})
}

// serverCommand adds the flags of o to cmd, and sets cmd to run a server with them.
func serverCommand(o *options, cmd *cobra.Command) *cobra.Command {
	if cmd.Args == nil {
		cmd.Args = cobra.NoArgs
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return explain(serve(cmd, o), cmd.Flags()) }
	o.addTo(cmd.Flags())
	o.config.Flagz = flagz.NamedFlagSetsReader{FlagSets: o.sections}
	cliflag.SetUsageAndHelpFunc(cmd, o.sections, columns(os.Stdout))
	return cmd
}

func serve(cmd *cobra.Command, o *options) error {
	if o.version.requested != "" && o.version.print(cmd.OutOrStdout()) {
		return nil
	}
	up := o.config.ServerRunOptions
	if !setsLogFlags(cmd.Flags()) {
		if err := silence(); err != nil {
			return err
		}
	}
	if err := up.GenericServerRunOptions.ComponentGlobalsRegistry.Set(); err != nil {
		return err
	}
	gates := utilfeature.DefaultMutableFeatureGate
	if err := logsapi.Validate(up.Logs, gates, nil).ToAggregate(); err != nil {
		return err
	}
	config := o.complete(cmd.Flags().Changed)
	config.Fatal = func(err error) { os.Exit(fail(cmd.ErrOrStderr(), err)) }
	config.Notify, config.Successor = notify, successor
	upgrades := make(chan os.Signal, 1)
	signal.Notify(upgrades, syscall.SIGUSR2)
	defer signal.Stop(upgrades)
	config.Upgrade = upgrades
	inherited, err := inherit()
	if err != nil {
		return err
	}
	config.Inherited = inherited
	config.SteerCollector = os.Getenv("GOGC") == ""
	if !o.quiet {
		config.Progress = cmd.ErrOrStderr()
	}
	if up.Logs.Format != logsapi.DefaultLogFormat && config.Progress != nil {
		config.Progress = progressLog{}
	}
	ctx, stop := untilSignal(cmd.ErrOrStderr())
	defer stop()
	if o.beside != nil {
		if err := o.beside(&config); err != nil {
			return err
		}
	}
	s, err := server.New(config)
	if err != nil {
		return err
	}
	if setsLogFlags(cmd.Flags()) {
		if err := logsapi.ValidateAndApply(up.Logs, gates); err != nil {
			return err
		}
	}
	logStart(cmd.Flags(), cmp.Or(config.GitVersion, server.Version().GitVersion))
	gates.AddMetrics()
	up.GenericServerRunOptions.ComponentGlobalsRegistry.AddMetrics()
	metricsfeatures.ApplyFeatureGates(gates)
	if changed(cmd.Flags(), up.Metrics.AddFlags) { // Apply logs an error if no flag was set
		up.Metrics.Apply()
	}
	limitMemory()
	slowMonitor()
	defer klog.Flush()
	return s.Run(ctx)
}

// limitMemory sets GOMEMLIMIT to nine tenths of the cgroup's memory limit, unless GOMEMLIMIT is set. The garbage
// collector then runs more often near the limit, so that the kernel does not kill the process.
func limitMemory() {
	if _, err := memlimit.Set(); err != nil {
		klog.V(2).InfoS("The memory limit of the cgroup is not known", "reason", err)
	}
}

// untilSignal returns a context that ends with the first SIGTERM or SIGINT. The second signal ends the process without
// draining, because the kernel ignores it in the first process of a container.
func untilSignal(stderr io.Writer) (context.Context, context.CancelFunc) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	ctx, cancel := context.WithCancel(context.Background())
	var receiving sync.WaitGroup
	receiving.Go(func() {
		for range signals {
			if ctx.Err() != nil {
				os.Exit(fail(stderr, errors.New("ended by a second signal")))
			}
			cancel()
		}
	})
	return ctx, func() {
		signal.Stop(signals) // sends nothing after it returns
		close(signals)
		receiving.Wait()
		cancel()
	}
}

// notify sends the state of the process to systemd, or to another service manager that listens
// at NOTIFY_SOCKET.
func notify(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		klog.ErrorS(err, "Cannot notify the service manager", "state", state)
	}
}

// columns returns the width at which help is wrapped.
func columns(out *os.File) int {
	const unknown = 100
	if width, _, err := term.TerminalSize(out); err == nil && width > 0 {
		return width
	}
	return unknown
}
