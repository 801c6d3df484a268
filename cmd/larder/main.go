// Command larder is a Kubernetes API server that keeps every object encoded and
// ready to serve.
//
//	larder serve         runs the server
//	larder dev           runs the server with the controllers that tests need
//	larder cluster       runs the server with the other programs of a cluster
//	larder relay         runs a read replica of another API server
//	larder checkpoint    saves the state of all objects under a name
//	larder reset         restores that state
//	larder snapshot      backs up etcd, and restores it
//	larder top           shows the costs of each client
//	larder version       prints the version
//
// Invoked as kube-apiserver, it runs `larder serve` with kube-apiserver's defaults. Invoked as
// etcd, or with the first argument etcd, it runs etcd.
//
// Only this package reads flags and the environment of the server.
package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	_ "time/tzdata" // the time zones of CronJobs, on machines without a database of them

	"github.com/spf13/cobra"

	"github.com/larder-io/larder/cmd/larder/internal/server"
	"github.com/larder-io/larder/kv/etcdmain"
)

func main() {
	os.Exit(run(os.Args, os.Stdout, os.Stderr))
}

// run executes a command line, which begins with the program's name, and returns the process's exit code. It prints
// an error as one line to stderr.
func run(args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	if len(args) > 1 && args[1] == "etcd" {
		args = args[1:] // for scripts, because not every shell can set argv[0]
	}
	switch filepath.Base(args[0]) {
	case "etcd":
		etcdmain.Main(args)
		return 0
	case kubeAPIServerName:
		root = newKubeAPIServer()
	}
	root.SetArgs(args[1:])
	root.SetOut(stdout)
	root.SetErr(stderr)
	if err := root.Execute(); err != nil {
		return fail(stderr, err)
	}
	return 0
}

// fail prints err in one line, and returns the exit code.
func fail(stderr io.Writer, err error) int {
	fmt.Fprintf(stderr, "larder: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
	return 1
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "larder",
		Short:         "A Kubernetes API server built around its watch cache",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.Version = versionText()
	root.SetVersionTemplate("{{.Version}}")
	root.AddCommand(newServe(), newDev(), newCluster(), newRelay(), newCheckpoint(), newReset(), newSnapshot(), newTop(), newVersion(), newMan())
	return root
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of larder and of the Kubernetes API it serves",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprint(cmd.OutOrStdout(), versionText())
			return err
		},
	}
}

func versionText() string {
	return fmt.Sprintf("larder %s\nkubernetes %s\n%s %s/%s\n",
		larderVersion(), server.Version().GitVersion, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// larderVersion returns the module's version, or the commit from which it was built.
func larderVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return "devel " + s.Value
		}
	}
	return "devel"
}
