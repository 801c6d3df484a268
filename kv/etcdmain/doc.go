// Package etcdmain runs etcd when the binary is invoked as etcd.
//
// It is etcd's own command, with its flags, environment, log and exit codes. It is a separate package because it also
// links etcd's proxies.
package etcdmain

import (
	"os"
	"slices"
	"strings"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

// Main runs etcd with args, whose first element is the program's name. It exits when etcd has ended.
func Main(args []string) { etcdmain.Main(shortenTicks(args, os.Environ())) }

// shortenTicks returns args with shorter ticks, unless args or the environment name other members or set
// the ticks. A single member cannot lose an election, so shorter ticks only shorten the start, by up to a
// second. Even shorter ones cost an idle etcd much CPU (T4).
func shortenTicks(args, environ []string) []string {
	for _, flag := range []string{
		"initial-cluster", "discovery", "discovery-endpoints", "discovery-token", "discovery-srv", "config-file",
		"heartbeat-interval", "election-timeout", "version", "help", "h",
	} {
		given := func(arg string) bool {
			name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
			return strings.HasPrefix(arg, "-") && name == flag
		}
		variable := "ETCD_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_")) + "="
		if slices.ContainsFunc(args, given) || slices.ContainsFunc(environ, func(v string) bool { return strings.HasPrefix(v, variable) }) {
			return args
		}
	}
	if len(args) > 1 && !strings.HasPrefix(args[1], "-") {
		return args // a command: gateway, grpc-proxy
	}
	return append(args[:len(args):len(args)], "--heartbeat-interval=20", "--election-timeout=100")
}
