package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/larder-io/larder/cmd/larder/internal/checkpoint"
)

// newCheckpoint returns the command that saves, lists and deletes checkpoints.
func newCheckpoint() *cobra.Command {
	var of remote
	var forget bool
	cmd := &cobra.Command{
		Use:   "checkpoint [NAME]",
		Short: "Save the state of all objects under a name",
		Long: `Save the state of all objects of a server that runs with --checkpoints, so that
"larder reset NAME" can restore it. Without a name, list the checkpoints.
The server keeps checkpoints in memory only, until it ends.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 0 && forget:
				return fmt.Errorf("--forget needs the name of a checkpoint")
			case len(args) == 0:
				return of.printCheckpoints(cmd.Context(), cmd.OutOrStdout())
			case forget:
				return of.requestCheckpoint(cmd.Context(), http.MethodDelete, nil, args[0])
			}
			var info checkpoint.Info
			if err := of.requestCheckpoint(cmd.Context(), http.MethodPost, &info, args[0]); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "checkpoint %s: %d objects at revision %d\n", info.Name, info.Objects, info.Revision)
			return err
		},
	}
	of.addTo(cmd.Flags())
	cmd.Flags().BoolVar(&forget, "forget", false, "Delete the checkpoint instead.")
	return cmd
}

// newReset returns the command that resets objects to a checkpoint.
func newReset() *cobra.Command {
	var of remote
	cmd := &cobra.Command{
		Use:   "reset NAME",
		Short: "Restore all objects to the state of a checkpoint",
		Long: `Restore all objects of a server that runs with --checkpoints to the state that
"larder checkpoint NAME" has saved. Objects created since are deleted; changed and deleted
objects are restored. Finalizers and admission are ignored. Watches stay open and receive
the changes.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var done checkpoint.Outcome
			if err := of.requestCheckpoint(cmd.Context(), http.MethodPost, &done, args[0], "reset"); err != nil {
				return err
			}
			for _, warning := range done.Warnings {
				fmt.Fprintln(cmd.ErrOrStderr(), "warning:", warning)
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "reset to %s: %d deleted, %d restored, %d changed\n", done.Name, done.Deleted, done.Restored, done.Changed)
			return err
		},
	}
	of.addTo(cmd.Flags())
	return cmd
}

// requestCheckpoint sends a request for a path below checkpoint.Path. It decodes the response into *out, unless out is nil.
func (r *remote) requestCheckpoint(ctx context.Context, method string, out any, below ...string) error {
	return r.request(ctx, method, path.Join(append([]string{checkpoint.Path}, below...)...), nil, out)
}

// printCheckpoints prints the server's checkpoints.
func (r *remote) printCheckpoints(ctx context.Context, w io.Writer) error {
	var all struct{ Items []checkpoint.Info }
	if err := r.requestCheckpoint(ctx, http.MethodGet, &all); err != nil {
		return err
	}
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "NAME\tTAKEN\tOBJECTS\tBYTES")
	for _, info := range all.Items {
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\n", info.Name, info.Taken.Local().Format(time.RFC3339), info.Objects, info.Bytes)
	}
	return table.Flush()
}
