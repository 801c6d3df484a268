package main

import (
	"strings"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/larder-io/larder/cmd/larder/internal/server"
)

// options holds the flags of `larder serve`, in the sections of --help.
type options struct {
	config   server.Config
	quiet    bool
	scratch  bool // use a temporary directory for certificates and keys if there is no data directory
	version  versionFlag
	sections cliflag.NamedFlagSets

	// beside, unless nil, sets Config.Beside.
	beside func(*server.Config) error
}

// newOptions returns options with the defaults of config.
func newOptions(config server.Config) *options {
	o := &options{config: config}
	for _, name := range []string{"generic", "etcd", "secure serving", "authentication", "authorization", "admission", "auditing", "misc", "larder"} {
		o.sections.FlagSet(name) // the order of --help
	}
	addLoggingGates()
	upstream := o.config.Flags()
	for _, name := range upstream.Order {
		o.sections.FlagSet(name).AddFlagSet(upstream.FlagSets[name])
	}
	o.addRemoved(o.sections.FlagSet("misc"))
	o.larder(o.sections.FlagSet("larder"))
	o.annotate()
	o.addGlobal(o.sections.FlagSet("global"))
	return o
}

// annotate adds Larder's differences to the usage of kube-apiserver's flags.
func (o *options) annotate() {
	different := strings.NewReplacer("If unspecified, --tls-private-key-file is used. ", "", " [default=false]", "")
	for name, also := range map[string]string{
		"advertise-address":                "A server that listens on loopback is in the endpoints of the kubernetes service only if this is set.",
		"allow-privileged":                 "Most network plugins and kube-proxy need them.",
		"cert-dir":                         "If apiserver.crt and apiserver.key are missing, they are generated there, signed by a CA in --data-dir. If unset, DATA-DIR/pki is used.",
		"client-ca-file":                   "If unset, a CA in --data-dir is used and an administrator's kubeconfig is written.",
		"endpoint-reconciler-type":         "A server does not join endpoints that other live servers publish with another port, unless it runs under the name kube-apiserver.",
		"etcd-servers":                     "Servers with etcd's API, such as kine, work too. If unset, an etcd runs in this process and stores its data in --data-dir.",
		"event-ttl":                        "0 keeps them forever.",
		"service-account-issuer":           "If unset, " + server.DefaultIssuer + " is used.",
		"service-account-key-file":         "If unset, the signing key is used.",
		"service-account-signing-key-file": "If unset, a key is generated in --data-dir.",
	} {
		for _, fs := range o.sections.FlagSets {
			if flag := fs.Lookup(name); flag != nil {
				flag.Usage = different.Replace(flag.Usage) + " " + also
			}
		}
	}
	if modes := o.config.Authorization.Modes; len(modes) > 0 {
		flag := o.sections.FlagSet("authorization").Lookup("authorization-mode")
		flag.Usage = strings.Replace(flag.Usage, "Defaults to AlwaysAllow if", "Defaults to "+strings.Join(modes, ",")+" if", 1)
		flag.DefValue = "[]" // help omits an empty list; the usage names the default
	}
}

// addTo adds the flags to a command.
func (o *options) addTo(fs *pflag.FlagSet) {
	fs.SetNormalizeFunc(cliflag.WordSepNormalizeFunc)
	for _, name := range o.sections.Order {
		fs.AddFlagSet(o.sections.FlagSets[name])
	}
}

// complete returns the configuration after the flags are parsed. changed reports whether a flag was
// set. With an external etcd, there is no data directory unless --data-dir names one.
func (o *options) complete(changed func(flag string) bool) server.Config {
	config := o.config
	if strings.HasPrefix(o.version.requested, "v") {
		config.GitVersion = o.version.requested
	}
	if len(config.Etcd.StorageConfig.Transport.ServerList) > 0 && !changed("data-dir") {
		config.DataDir, config.Scratch = "", o.scratch
	}
	return config
}

func (o *options) larder(fs *pflag.FlagSet) {
	fs.StringVar(&o.config.DataDir, "data-dir", o.config.DataDir,
		"Directory of the embedded etcd and of generated certificates, keys and the administrator's kubeconfig. With --etcd-servers and without this flag, a temporary directory is used and removed when the server ends.")
	fs.Var((*indexLabels)(&o.config.IndexLabels), "index-labels",
		"Labels to index, as resource[.group]=key,... May be repeated. Selectors that require one value of such a label use the index. Other labels that selectors often use are indexed automatically.")
	fs.Var(&cacheBytes{all: &o.config.CacheBytes, shares: &o.config.CacheShares}, "cache-max-bytes",
		"Limit of cached encodings and past events, in bytes. The objects themselves do not count. If the limit is too low, objects are encoded again for each request, and watches can resume only from recent revisions. Events are kept for 90 seconds, or for --request-timeout plus 15 seconds if that is longer. 2Gi,pods=512Mi,events=64Mi also limits single resources; the first number is optional. Other resources may use what a limited resource leaves free. 0 allows encodings half the size of all objects, at least 144 MiB, and encodings and events together twice the size of all objects, at least 256 MiB; each at most 3/8 of a memory limit, less the limits of single resources. -1 sets no limit except those of single resources.")
	fs.BoolVar(&o.config.RevokeWatches, "revoke-watches", o.config.RevokeWatches,
		"End a watch within five seconds after its user loses access, because a role, a token, or the CA of a certificate is removed. If false, the watch runs until its timeout, as in kube-apiserver.")
	fs.IntVar(&o.config.MaxConnections, "max-connections", o.config.MaxConnections,
		"Limit of open connections. Further connections are closed at once. One client can use up the limit and lock out all others; --max-connections-per-address prevents that. 0 sets no limit with --etcd-servers. With an embedded etcd, 0 is 150 less than the limit of open files (ulimit -n).")
	fs.IntVar(&o.config.MaxConnectionsPerAddress, "max-connections-per-address", o.config.MaxConnectionsPerAddress,
		"Limit of open connections from one IPv4 address or one IPv6 /64. Behind a load balancer all clients may share one address. 0 sets no limit.")
	fs.Int64Var(&o.config.Store.ReplayRevisions, "replay-revisions", o.config.Store.ReplayRevisions,
		"Number of past revisions to replay at the start, so that clients can resume their watches after a restart. Up to 100,000 are replayed if they are from the last 80 seconds. 10,000 revisions take about a second. With an embedded etcd under a memory limit, fewer are replayed if they have more than an eighth of it. 0 replays none.")
	fs.BoolVar(&o.config.Checkpoints, "checkpoints", o.config.Checkpoints,
		"For test suites: let users with the right to post to /larder/checkpoints save the state of all objects and reset to it, without admission and finalizers. See larder checkpoint.")
	fs.Var(&faultsFlag{enabled: &o.config.Faults, seed: &o.config.FaultSeed}, "faults",
		"For tests of controllers: true lets users with the right to put to /larder/faults define faults, which the server injects into the requests of other clients. A positive number does the same, and is the seed of random faults for all clients except kubectl.")
	fs.BoolVar(&o.config.StatusPage, "status-page", o.config.StatusPage,
		"Serve a status page at /larder/. Everyone can load the page, which contains no data. It reads /larder/status, which requires the right to get that path.")
	check := &o.config.Store.CheckInterval
	fs.DurationVar(check, "consistency-check-interval", *check,
		"How often to compare the keys and revisions of each cache with etcd's. A cache that differs is reloaded. 0 disables the check.")
	fs.DurationVar(check, "self-audit-interval", *check, "The former name of --consistency-check-interval.")
	if err := fs.MarkDeprecated("self-audit-interval", "use --consistency-check-interval."); err != nil {
		panic(err)
	}
	fs.Int64Var(&o.config.Store.QuotaBytes, "quota-backend-bytes", o.config.Store.QuotaBytes,
		"Size limit of the embedded etcd's database, in bytes. When it is reached, old revisions are compacted, and writes are refused until there is room. 0 is 8 GiB.")
	fs.DurationVar(&o.config.Store.DefragmentInterval, "defrag-interval", o.config.Store.DefragmentInterval,
		"How often to check the embedded etcd's database. If at least half of it and at least 64 MiB are free, it is defragmented; writes wait until that ends. 0 disables this.")
	fs.BoolVar(&o.config.Store.UnsafeNoFsync, "unsafe-no-fsync", o.config.Store.UnsafeNoFsync,
		"For tests: the embedded etcd does not wait for the disk. The last acknowledged writes are lost if the machine stops.")
	fs.BoolVar(&o.config.TestControllers, "test-controllers", o.config.TestControllers,
		"Run the controllers that most tests need. They empty deleted namespaces, delete objects whose owners are gone, and create the default service account and kube-root-ca.crt of each namespace. Do not run them beside a kube-controller-manager, or in two servers on one etcd.")
	fs.BoolVarP(&o.quiet, "quiet", "q", o.quiet, "Print no progress.")
}
