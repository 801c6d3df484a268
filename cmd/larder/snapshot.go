package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"github.com/larder-io/larder/cmd/larder/internal/server"
	"github.com/larder-io/larder/cmd/larder/internal/server/datadir"
	"github.com/larder-io/larder/kv/embedded"
	"github.com/larder-io/larder/kv/snapshot"
)

func newSnapshot() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "snapshot",
		Short: "Back up etcd to a file, and restore it",
		Long: `Save a snapshot of etcd to a file, check and describe such a file, and create a data
directory from it. etcdctl and etcdutl read and write the same files.

Certificates, keys and configuration files are not in etcd: back them up as well.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newSnapshotSave(), newSnapshotRestore(), newSnapshotStatus())
	return cmd
}

// snapshotCommand makes cmd call run with a context that ends with a signal.
func snapshotCommand(cmd *cobra.Command, run func(ctx context.Context, file string) error) *cobra.Command {
	cmd.Args = cobra.ExactArgs(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := silence(); err != nil {
			return err
		}
		klog.SetOutput(io.Discard) // gRPC logs each failed attempt; the returned error has the last one
		ctx, stop := untilSignal(cmd.ErrOrStderr())
		defer stop()
		return run(ctx, args[0])
	}
	return cmd
}

func newSnapshotSave() *cobra.Command {
	var dir string
	var from snapshot.Source
	cmd := &cobra.Command{
		Use:   "save FILE",
		Short: "Save a snapshot of a running etcd to a new file",
		Long: `Save a snapshot to a new file, either of the embedded etcd of the running server that uses
--data-dir, or of the external etcd at --etcd-servers. The snapshot includes every write
that completed before the command began. The file gets its name once it is complete and
verified.`,
	}
	fs := cmd.Flags()
	fs.StringVar(&dir, "data-dir", server.Default().DataDir, "The --data-dir of the server whose embedded etcd is saved. Only root and the server's user can do that.")
	fs.StringSliceVar(&from.Endpoints, "etcd-servers", nil, "Client URLs of an external etcd to save instead, comma separated. The first that responds is used.")
	fs.StringVar(&from.CAFile, "etcd-cafile", "", "CA file that verifies etcd's certificate.")
	fs.StringVar(&from.CertFile, "etcd-certfile", "", "Client certificate file for etcd.")
	fs.StringVar(&from.KeyFile, "etcd-keyfile", "", "Key file of --etcd-certfile.")
	return snapshotCommand(cmd, func(ctx context.Context, file string) error {
		if (from.CertFile == "") != (from.KeyFile == "") {
			return errors.New("--etcd-certfile and --etcd-keyfile must be given together")
		}
		switch external := len(from.Endpoints) > 0; {
		case external && fs.Changed("data-dir"):
			return errors.New("--data-dir and --etcd-servers cannot be used together")
		case !external:
			if err := requireFlag(fs, "etcd-servers", "etcd-cafile", "etcd-certfile", "etcd-keyfile"); err != nil {
				return err
			}
			socket, err := embedded.Socket(server.EtcdDir(dir))
			if err != nil {
				return err
			}
			if _, err := os.Stat(socket.Path); err != nil {
				return fmt.Errorf("no server with an embedded etcd uses %s: %w", dir, err)
			}
			from.Endpoints = []string{socket.String()}
		}
		status, err := snapshot.Save(ctx, from, file)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "saved %s: %d keys at revision %d, %d bytes\n", file, status.TotalKey, status.Revision, status.TotalSize)
		return err
	})
}

func newSnapshotRestore() *cobra.Command {
	var dir, etcdDir string
	cfg := snapshot.RestoreConfig{Bump: snapshot.DefaultBump}
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Create a data directory from a snapshot",
		Long: `Create a data directory from a file of "larder snapshot save" or "etcdctl snapshot save",
either for the embedded etcd of a stopped server, or, with --etcd-dir, for a member of an
external etcd. The result is a new etcd cluster with its own ID, and with revisions that
no client has seen, so clients with open watches must list again. The command never
changes a directory that contains an etcd; move it away first.`,
	}
	fs := cmd.Flags()
	fs.StringVar(&dir, "data-dir", server.Default().DataDir, "The --data-dir of the server to restore. Its certificates and keys stay as they are.")
	fs.StringVar(&etcdDir, "etcd-dir", "", "Create the --data-dir of a member of an external etcd instead.")
	fs.Uint64Var(&cfg.Bump, "bump-revision", cfg.Bump,
		"Number to add to the file's revision. It must exceed the number of writes since the file was saved. Earlier revisions count as compacted. With 0, clients may confuse new revisions with those from before the restore.")
	m := &cfg.Member
	fs.StringVar(&m.Name, "name", "", "With --etcd-dir, the member's --name. (default \"default\")")
	fs.StringVar(&m.Peer, "initial-advertise-peer-urls", "", "With --etcd-dir, the member's peer URL. (default \""+embedded.MemberPeer+"\")")
	fs.StringVar(&m.Cluster, "initial-cluster", "", "With --etcd-dir, all members as name=URL, comma separated. (default this member alone)")
	fs.StringVar(&m.Token, "initial-cluster-token", "", "With --etcd-dir, the cluster's token: the same for all members, and different from the old cluster's.")
	return snapshotCommand(cmd, func(ctx context.Context, file string) error {
		cfg.Path = file
		var held *datadir.Dir
		if etcdDir == "" {
			err := requireFlag(fs, "etcd-dir", "name", "initial-advertise-peer-urls", "initial-cluster", "initial-cluster-token")
			if err != nil {
				return err
			}
			if held, err = datadir.OpenOfOwner(dir); err != nil {
				return err
			}
			defer held.Close()
			cfg.Dir = server.EtcdDir(held.Path)
		} else if err := completeMember(&cfg, etcdDir, fs); err != nil {
			return err
		}
		status, err := snapshot.Restore(ctx, cfg)
		if err == nil && held != nil {
			err = held.Adopt(cfg.Dir)
		}
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "restored %s: %d keys at revision %d\n", cfg.Dir, status.TotalKey, uint64(status.Revision)+cfg.Bump)
		return err
	})
}

// requireFlag returns an error if one of names is set, which have no effect without the flag required.
func requireFlag(fs *pflag.FlagSet, required string, names ...string) error {
	for _, name := range names {
		if fs.Changed(name) {
			return fmt.Errorf("--%s needs --%s", name, required)
		}
	}
	return nil
}

// completeMember sets the configuration of a restored member of an external etcd.
func completeMember(cfg *snapshot.RestoreConfig, dir string, fs *pflag.FlagSet) error {
	if fs.Changed("data-dir") {
		return errors.New("--data-dir and --etcd-dir cannot be used together")
	}
	cfg.Dir = dir
	m := &cfg.Member
	m.Name = cmp.Or(m.Name, "default") // etcd's default
	if strings.Contains(m.Cluster, ",") && m.Token == "" {
		return errors.New("--initial-cluster-token is required: all members must be restored with the same token")
	}
	return nil
}

func newSnapshotStatus() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "status FILE",
		Short: "Verify a snapshot and describe it",
		Long:  `Verify that a file is complete and unchanged since etcd sent it, and describe its contents.`,
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "Output format: json, or empty for a table.")
	return snapshotCommand(cmd, func(ctx context.Context, file string) error {
		if output != "" && output != "json" {
			return fmt.Errorf("--output must be json or empty, not %q", output)
		}
		status, err := snapshot.Inspect(ctx, file)
		if err != nil {
			return err
		}
		if output == "json" {
			return json.NewEncoder(cmd.OutOrStdout()).Encode(status)
		}
		table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
		fmt.Fprintln(table, "HASH\tREVISION\tKEYS\tBYTES\tVERSION")
		fmt.Fprintf(table, "%08x\t%d\t%d\t%d\t%s\n", status.Hash, status.Revision, status.TotalKey, status.TotalSize, status.Version)
		return table.Flush()
	})
}
