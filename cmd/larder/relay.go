package main

import (
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/klog/v2"
	netutils "k8s.io/utils/net"

	"github.com/larder-io/larder/cmd/larder/internal/relay"
	"github.com/larder-io/larder/cmd/larder/internal/server"
)

// consistentFrom is the number of objects from which on a list costs the upstream more than a proof of what is
// present, which takes more than a second.
const consistentFrom = 1000

func newRelay() *cobra.Command {
	secure := genericoptions.NewSecureServingOptions()
	secure.BindAddress, secure.BindPort = netutils.ParseIPSloppy("127.0.0.1"), 6444
	secure.ServerCert.CertDirectory = ""
	config := relay.Config{SecureServing: secure, Idle: 10 * time.Minute, ServeStale: 5 * time.Minute, Version: server.Version()}
	var kubeconfigs, clientCAs []string
	var budget resource.QuantityValue
	var sections cliflag.NamedFlagSets
	fs := sections.FlagSet("relay")
	fs.StringArrayVar(&kubeconfigs, "upstream", nil,
		"Kubeconfig of the upstream: its address, and the relay's own credentials. If unset, the relay follows the cluster that it runs in. "+
			"NAME=KUBECONFIG serves the upstream below /clusters/NAME, and may be repeated.")
	fs.StringArrayVar(&clientCAs, "client-ca-file", nil,
		"File with the CAs of client certificates, or NAME=FILE for an upstream with a name. The relay impersonates their users at the upstream.")
	fs.StringSliceVar(&config.Resources, "resources", config.Resources,
		"Resources to follow, as RESOURCE or RESOURCE.GROUP. If unset, each resource but secrets is followed when it is first read.")
	consistent := fs.String("consistent-reads", "upstream",
		fmt.Sprintf(`What answers lists without a resourceVersion: "upstream", or "cache", if it has at least %d objects for them and has provably seen the upstream's present.`, consistentFrom))
	fs.DurationVar(&config.Idle, "idle", config.Idle, "A resource that nothing reads for this long is no longer followed.")
	fs.DurationVar(&config.ServeStale, "serve-stale", config.ServeStale,
		"How long reads are answered from caches while the upstream does not answer.")
	fs.Var(&budget, "memory-budget",
		"Bytes of objects, of all upstreams together, that caches may have, as in 2Gi. Requests for resources without room go through. "+
			"If unset, half of the memory limit of the process, or no limit if that has none.")
	secure.AddFlags(sections.FlagSet("secure serving"))
	cmd := &cobra.Command{
		Use:   "relay",
		Short: "Run a read replica of another API server",
		Long: `Run a read replica of another API server, the upstream.

LISTs and GETs with a resourceVersion, and watches, are answered from caches. The relay
follows each resource with one watch of the upstream. All other requests go through to the
upstream. Users authenticate and are authorized as at the upstream. See docs/relay.md.`,
		Args: cobra.NoArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch *consistent {
		case "upstream":
		case "cache":
			config.ConsistentFrom = consistentFrom
		default:
			return fmt.Errorf("--consistent-reads=%q: want upstream or cache", *consistent)
		}
		if budget.Sign() < 0 {
			return fmt.Errorf("--memory-budget=%s: want 0 or more", &budget)
		}
		var err error
		if config.Upstreams, err = relay.ParseUpstreams(kubeconfigs, clientCAs); err != nil {
			return err
		}
		config.MemoryBudget, config.Progress, config.SteerCollector = budget.Value(), cmd.ErrOrStderr(), os.Getenv("GOGC") == ""
		config.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
		ctx, stop := untilSignal(func() { os.Exit(fail(cmd.ErrOrStderr(), errSecondSignal)) })
		defer stop()
		s, err := relay.New(config)
		if err != nil {
			return err
		}
		limitMemory()
		defer klog.Flush()
		return s.Run(ctx)
	}
	for _, section := range sections.FlagSets {
		cmd.Flags().AddFlagSet(section)
	}
	cliflag.SetUsageAndHelpFunc(cmd, sections, columns(os.Stdout))
	return cmd
}
