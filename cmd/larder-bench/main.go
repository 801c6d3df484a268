// Command larder-bench puts load on a Kubernetes API server and says what it
// cost. It runs against any server that a kubeconfig names; given the server's
// process id it accounts for CPU and memory too.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/spf13/cobra"

	"github.com/larder-io/larder/bench"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "larder-bench:", err)
		os.Exit(1)
	}
}

// options are the flags that every workload shares.
type options struct {
	kubeconfig string
	pid        int
	clients    int
}

func (o *options) target() (*bench.Target, error) {
	target, err := bench.NewTarget(o.kubeconfig, o.clients)
	if err != nil {
		return nil, err
	}
	target.Process = bench.Process{PID: o.pid}
	return target, nil
}

func command() *cobra.Command {
	o := &options{}
	root := &cobra.Command{
		Use:           "larder-bench",
		Short:         "Put load on a Kubernetes API server and say what it cost",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	flags := root.PersistentFlags()
	flags.StringVar(&o.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "kubeconfig of the server under load")
	flags.IntVar(&o.pid, "pid", 0, "process id of the server, if it runs on this machine: its CPU and memory are accounted")
	flags.IntVar(&o.clients, "clients", 1, "requests under way at a time")
	root.AddCommand(seedCommand(o), readCommand(o))
	return root
}

func seedCommand(o *options) *cobra.Command {
	c := bench.SeedConfig{}
	cmd := &cobra.Command{
		Use:   "seed",
		Short: "Create realistic pods",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.Clients = o.clients
			return run(cmd, o, func(ctx context.Context, t *bench.Target) (*bench.Result, error) {
				return bench.Seed(ctx, t, c)
			})
		},
	}
	cmd.Flags().IntVar(&c.Pods, "pods", 10000, "how many pods")
	cmd.Flags().IntVar(&c.Namespaces, "namespaces", 50, "over how many namespaces")
	cmd.Flags().IntVar(&c.Nodes, "nodes", 500, "over how many nodes")
	return cmd
}

func readCommand(o *options) *cobra.Command {
	c := bench.ReadConfig{}
	cmd := &cobra.Command{
		Use:   "read PATH",
		Short: "GET a path again and again: an object, a collection, a selection",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c.Name, c.Path, c.Clients = args[0], args[0], o.clients
			return run(cmd, o, func(ctx context.Context, t *bench.Target) (*bench.Result, error) {
				return bench.Read(ctx, t, c)
			})
		},
	}
	cmd.Flags().StringVar(&c.Accept, "accept", bench.Protobuf, "media type asked for")
	cmd.Flags().StringVar(&c.Encoding, "accept-encoding", "", "Accept-Encoding header, none if empty")
	cmd.Flags().IntVar(&c.Requests, "requests", 20, "how many requests")
	return cmd
}

// run runs one workload and prints its row.
func run(cmd *cobra.Command, o *options, workload func(context.Context, *bench.Target) (*bench.Result, error)) error {
	target, err := o.target()
	if err != nil {
		return err
	}
	defer target.Close()
	result, err := workload(cmd.Context(), target)
	if err != nil {
		return err
	}
	return bench.WriteText(cmd.OutOrStdout(), result)
}
