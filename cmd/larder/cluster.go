package main

import (
	"cmp"
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

// clusterOptions holds the flags that only `larder cluster` has.
type clusterOptions struct {
	nodes    int
	programs string // directory of the programs; "" builds them
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
	return serverCommand(o, &cobra.Command{
		Use:   "cluster",
		Short: "Run a cluster: API server, controllers, scheduler and simulated nodes",
		Long: `Run a cluster on this machine: the API server with its etcd in this process, and
kube-controller-manager, kube-scheduler and kwok as processes. The first run builds these
three from their Go modules, which takes minutes. Kwok simulates nodes: pods are scheduled
and change their status, but run no containers.

Requests are authorized by RBAC and the Node authorizer; each program has its own
certificate. Ctrl-C ends all programs. The next start continues with the data directory.
The server takes the flags of "larder serve".`,
	})
}

func (c *clusterOptions) addTo(fs *pflag.FlagSet) {
	fs.IntVar(&c.nodes, "nodes", c.nodes, "Number of simulated nodes.")
	fs.StringVar(&c.programs, "programs", c.programs,
		"Directory of kube-controller-manager, kube-scheduler, kwok and the stage-fast.yaml of kwok's releases. If unset, the go command builds them once for each user.")
}

// prepare makes config run the cluster's other programs when the server is ready. Without --programs, missing programs
// are then built, which takes minutes.
func (c *clusterOptions) prepare(config *server.Config) error {
	switch {
	case config.DataDir == "":
		return errors.New("with --etcd-servers, larder cluster needs --data-dir for its certificates and logs")
	case config.Authentication.ClientCert.ClientCA != "" || config.ServiceAccountSigningKeyFile+config.ServiceAccountSigningEndpoint != "":
		return errors.New("larder cluster generates its certificates and keys in --data-dir: --client-ca-file, --service-account-signing-key-file and --service-account-signing-endpoint cannot be set")
	case config.TestControllers:
		return errors.New("larder cluster runs a kube-controller-manager: --test-controllers cannot be set")
	}
	beside := cluster.Cluster{Dir: config.DataDir, Nodes: c.nodes, ServiceRanges: config.ServiceClusterIPRanges, Progress: cmp.Or[io.Writer](config.Progress, io.Discard)}
	err := beside.Validate()
	if err == nil && c.programs != "" {
		if beside.Programs, err = programs.Find(c.programs); err != nil {
			err = fmt.Errorf("--programs: %w", err)
		}
	}
	config.Beside = func(ctx context.Context) (err error) {
		if c.programs == "" {
			if beside.Programs, err = programs.Build(ctx, beside.Progress); err != nil {
				return err
			}
		}
		return beside.Run(ctx)
	}
	return err
}
