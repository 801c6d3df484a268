package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/larder-io/larder/cmd/larder/internal/cluster"
	"github.com/larder-io/larder/cmd/larder/internal/cluster/programs"
	"github.com/larder-io/larder/cmd/larder/internal/server"
	"github.com/larder-io/larder/internal/auth"
)

// clusterOptions are the flags that only `larder cluster` has.
type clusterOptions struct {
	nodes    int
	programs string // directory; "" builds them
}

func newCluster() *cobra.Command {
	config := server.Default()
	config.Authorization.Modes = []string{auth.ModeNode, auth.ModeRBAC}
	o := newOptions(config)
	o.config.Admission.GenericAdmission.EnablePlugins = []string{"NodeRestriction"}
	o.scratch = true
	c := &clusterOptions{nodes: 10}
	c.addTo(o.sections.FlagSet("cluster"))
	o.sections.Order = append([]string{"cluster"}, o.sections.Order[:len(o.sections.Order)-1]...)
	o.beside = c.prepare
	return serving(o, &cobra.Command{
		Use:   "cluster",
		Short: "Run a whole cluster: API server, controllers, scheduler and nodes that do not exist",
		Long: `Run a cluster of one machine: the API server with its etcd in this process, and
kube-controller-manager, kube-scheduler and kwok beside it, which are built from their
Go modules the first time, within minutes. Kwok plays nodes that do not exist: pods are
scheduled to them and run and end as far as anybody can see, but nothing is executed.

Everything is authorized by roles, and by the nodes' own rules; each program has a
certificate of its own. Ctrl-C ends it all, and the next start goes on with what is in
the data directory. The server takes the flags of "larder serve".`,
	})
}

func (c *clusterOptions) addTo(fs *pflag.FlagSet) {
	fs.IntVar(&c.nodes, "nodes", c.nodes, "Number of simulated nodes.")
	fs.StringVar(&c.programs, "programs", c.programs,
		"Directory that holds kube-controller-manager, kube-scheduler, kwok and the stage-fast.yaml of kwok's releases. If unset, they are built with the go command, once for this user.")
}

// prepare makes config run the other programs of the cluster beside its server. If they must be built,
// which takes minutes, that begins once the server is ready.
func (c *clusterOptions) prepare(config *server.Config) error {
	switch {
	case config.DataDir == "":
		return errors.New("over an external etcd a cluster needs --data-dir, to keep certificates and logs in")
	case config.Authentication.ClientCert.ClientCA != "" || config.ServiceAccountSigningKeyFile+config.ServiceAccountSigningEndpoint != "":
		return errors.New("a cluster's certificates and keys are made in --data-dir: --client-ca-file, --service-account-signing-key-file and --service-account-signing-endpoint cannot be given")
	case config.TestControllers:
		return errors.New("a cluster has a kube-controller-manager, beside which --test-controllers must not run")
	}
	beside := cluster.Config{Dir: config.DataDir, Nodes: c.nodes, ServiceRanges: config.ServiceClusterIPRanges, Progress: config.Progress}
	err := beside.Validate()
	if err == nil && c.programs != "" {
		beside.Programs, err = programs.Find(c.programs)
	}
	config.Beside = func(ctx context.Context) (err error) {
		if c.programs == "" {
			if beside.Programs, err = build(ctx, config.Progress); err != nil {
				return err
			}
		}
		all, err := cluster.New(beside)
		if err != nil {
			return err
		}
		return all.Run(ctx)
	}
	return err
}

// build returns the programs that this user has built before, or builds them.
func build(ctx context.Context, progress io.Writer) (programs.Programs, error) {
	cache, err := programs.CacheDir()
	if err != nil {
		return programs.Programs{}, err
	}
	return programs.Build(ctx, cache, func(what string) {
		if progress != nil {
			fmt.Fprintln(progress, what)
		}
	})
}
