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

// consistentFrom is the minimum number of objects of lists for which a proof that the cache is current costs the
// upstream less than the list. A proof takes more than a second.
const consistentFrom = 1000

func newRelay() *cobra.Command {
	secure := genericoptions.NewSecureServingOptions()
	secure.BindAddress, secure.BindPort = netutils.ParseIPSloppy("127.0.0.1"), 6444
	secure.Required, secure.ServerCert.CertDirectory = true, ""
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
		"Resources to follow, as RESOURCE or RESOURCE.GROUP. If unset, the relay follows each resource except secrets from its first read on.")
	consistent := fs.String("consistent-reads", "upstream",
		fmt.Sprintf(`Which server serves lists without a resourceVersion: "upstream"; or "cache", which serves lists of at least %d objects from a cache that is proved current, and passes others to the upstream.`, consistentFrom))
	fs.BoolVar(&config.CacheNewer, "cache-newer", false,
		"Serve reads of built-in resources in protobuf from caches if the upstream has a newer minor version. "+
			"Each connection must then lead to one of the upstream's servers: no proxy or balancer between them may read HTTP.")
	fs.DurationVar(&config.Idle, "idle", config.Idle, "How long to follow a resource that no client reads.")
	fs.DurationVar(&config.ServeStale, "serve-stale", config.ServeStale,
		"How long to serve reads from caches while the upstream does not respond.")
	fs.Var(&budget, "memory-budget",
		"Limit of the cached objects of all upstreams, in bytes, as in 2Gi. Requests for resources that do not fit are passed to the upstream. "+
			"0 allows half of the process's memory limit, or sets no limit if the process has none.")
	secure.AddFlags(sections.FlagSet("secure serving"))
	cmd := &cobra.Command{
		Use:   "relay",
		Short: "Run a read replica of another API server",
		Long: `Run a read replica of another API server, the upstream.

The relay serves watches, and LISTs and GETs with a resourceVersion, from caches. It
follows each resource with one watch of the upstream, and passes all other requests to
the upstream, which also authenticates and authorizes users. See docs/relay.md.`,
		Args: cobra.NoArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		defer func() { err = explain(err, cmd.Flags()) }()
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
		if config.Upstreams, err = relay.ParseUpstreams(kubeconfigs, clientCAs); err != nil {
			return err
		}
		config.MemoryBudget, config.Progress, config.SteerCollector = budget.Value(), cmd.ErrOrStderr(), os.Getenv("GOGC") == ""
		config.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
		ctx, stop := untilSignal(cmd.ErrOrStderr())
		defer stop()
		s, err := relay.New(config)
		if err != nil {
			return err
		}
		limitMemory()
		slowMonitor()
		defer klog.Flush()
		return s.Run(ctx)
	}
	for _, section := range sections.FlagSets {
		cmd.Flags().AddFlagSet(section)
	}
	cliflag.SetUsageAndHelpFunc(cmd, sections, columns(os.Stdout))
	return cmd
}
