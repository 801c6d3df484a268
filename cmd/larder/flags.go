package main

import (
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/spf13/pflag"
	audit "k8s.io/apiserver/pkg/server/options"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"
	netutils "k8s.io/utils/net"

	"github.com/larder-io/larder/cmd/larder/internal/server"
	"github.com/larder-io/larder/internal/admission"
)

// options are the flags of `larder serve`, in the sections --help shows.
type options struct {
	config     server.Config
	minRequest int // seconds, as upstream's flag is
	quiet      bool
	scratch    bool // certificates and keys are made without a data directory, too
	version    versionFlag
	revoke     bool // watches end when their users lose the right to them
	sections   cliflag.NamedFlagSets

	// beside, if not nil, sets Config.Beside.
	beside func(*server.Config) error
}

// newOptions returns flags with the defaults of config.
func newOptions(config server.Config) *options {
	o := &options{config: config, revoke: !config.KeepWatches}
	o.minRequest = int(o.config.Serving.MinRequestTimeout / time.Second)
	o.generic(o.sections.FlagSet("generic"))
	o.etcd(o.sections.FlagSet("etcd"))
	o.encryption(o.sections.FlagSet("etcd"))
	o.serving(o.sections.FlagSet("secure serving"))
	o.authentication(o.sections.FlagSet("authentication"))
	o.authorization(o.sections.FlagSet("authorization"))
	o.config.Admission = admission.NewOptions()
	o.config.Admission.AddFlags(o.sections.FlagSet("admission"))
	o.config.Audit = audit.NewAuditOptions()
	o.config.Audit.AddFlags(o.sections.FlagSet("auditing"))
	o.services(o.sections.FlagSet("misc"))
	o.aggregation(o.sections.FlagSet("misc"))
	o.larder(o.sections.FlagSet("larder"))
	o.upstream()
	o.global(o.sections.FlagSet("global"))
	return o
}

// addTo adds the flags to a command.
func (o *options) addTo(fs *pflag.FlagSet) {
	fs.SetNormalizeFunc(cliflag.WordSepNormalizeFunc)
	for _, name := range o.sections.Order {
		fs.AddFlagSet(o.sections.FlagSets[name])
	}
}

// complete returns the configuration once the flags are parsed; changed tells which were
// given. Over an external etcd, there is no data directory unless --data-dir names one.
func (o *options) complete(changed func(flag string) bool) server.Config {
	config := o.config
	config.KeepWatches = !o.revoke
	if strings.HasPrefix(o.version.asked, "v") {
		config.Upstream.GitVersion = o.version.asked
	}
	if len(config.Store.Servers) > 0 && !changed("data-dir") {
		config.DataDir, config.Scratch = "", o.scratch
	}
	config.Serving.MinRequestTimeout = time.Duration(o.minRequest) * time.Second
	return config
}

func (o *options) generic(fs *pflag.FlagSet) {
	s, f := &o.config.Serving, &o.config.InFlight
	fs.IPVar(&s.AdvertiseAddress, "advertise-address", s.AdvertiseAddress,
		"The address on which other members of the cluster reach this server. If unset, --bind-address is used, and where that is unspecified or loopback, the address of the default route. A server that listens on loopback is in the endpoints of the kubernetes service only if this is set.")
	fs.StringVar(&s.ExternalHost, "external-hostname", s.ExternalHost,
		"The name by which others are told to find this server, in the metadata of service-account tokens for one. If unset, the --advertise-address.")
	fs.DurationVar(&s.RequestTimeout, "request-timeout", s.RequestTimeout,
		"How long a request may take, unless it is a watch or another long-running one.")
	fs.IntVar(&o.minRequest, "min-request-timeout", o.minRequest,
		"Seconds after which, at the earliest, a watch ends whose client asked for no timeout. Each gets a random time between this and twice this.")
	fs.IntVar(&f.Most, "max-requests-inflight", f.Most,
		"With --max-mutating-requests-inflight, how many requests are served at once if --enable-priority-and-fairness is true; else how many that read are, and 0 sets no bound.")
	fs.IntVar(&f.MostMutating, "max-mutating-requests-inflight", f.MostMutating,
		"With --max-requests-inflight, how many requests are served at once if --enable-priority-and-fairness is true; else how many that write are, and 0 sets no bound.")
	fs.BoolVar(&f.Fairness, "enable-priority-and-fairness", f.Fairness,
		"Share what can be served at once among the priority levels that FlowSchemas put requests into, and let others wait.")
	fs.DurationVar(&s.ShutdownDelay, "shutdown-delay-duration", s.ShutdownDelay,
		"How long to go on serving after a termination signal, while /readyz already fails, so that load balancers can turn away.")
}

func (o *options) etcd(fs *pflag.FlagSet) {
	s := &o.config.Store
	fs.StringSliceVar(&s.Servers, "etcd-servers", s.Servers,
		"Servers of an etcd cluster, or of what speaks its protocol as kine does, to connect to (scheme://ip:port), comma separated. If unset, an etcd runs inside this process and keeps its data in --data-dir.")
	fs.StringVar(&s.Prefix, "etcd-prefix", s.Prefix, "What every key in etcd begins with.")
	fs.StringVar(&s.CAFile, "etcd-cafile", s.CAFile, "Certificate authority file that etcd's certificate is verified with.")
	fs.StringVar(&s.CertFile, "etcd-certfile", s.CertFile, "Certificate file that this server shows to etcd.")
	fs.StringVar(&s.KeyFile, "etcd-keyfile", s.KeyFile, "Key file of --etcd-certfile.")
	fs.DurationVar(&s.CompactionInterval, "etcd-compaction-interval", s.CompactionInterval,
		"How often old revisions are compacted away. 0 leaves that to others.")
}

func (o *options) serving(fs *pflag.FlagSet) {
	s := &o.config.Serving
	fs.IPVar(&s.BindAddress, "bind-address", s.BindAddress, "The address to listen on. 0.0.0.0 or :: listens on all.")
	fs.IntVar(&s.Port, "secure-port", s.Port, "The port to serve HTTPS on. It cannot be switched off with 0.")
	fs.StringVar(&s.CertDir, "cert-dir", s.CertDir,
		"The directory of apiserver.crt and apiserver.key. They are made, signed by an authority in --data-dir, where they are missing. Ignored when --tls-cert-file is given. (default DATA-DIR/pki)")
	fs.StringVar(&s.CertFile, "tls-cert-file", s.CertFile, "File with the x509 certificate for HTTPS, its authorities after it. Read again when it changes.")
	fs.StringVar(&s.KeyFile, "tls-private-key-file", s.KeyFile, "File with the private key of --tls-cert-file.")
}

func (o *options) encryption(fs *pflag.FlagSet) {
	e := &o.config.Encryption
	fs.StringVar(&e.File, "encryption-provider-config", e.File, "File with an EncryptionConfiguration: how values are encrypted in etcd, and decrypted.")
	fs.BoolVar(&e.Reload, "encryption-provider-config-automatic-reload", e.Reload,
		"Read --encryption-provider-config again when it changes. Health checks of all its KMS providers are then one, kms-providers.")
}

// authentication adds upstream's flags; their usage says what is used if they are unset.
func (o *options) authentication(fs *pflag.FlagSet) {
	o.config.Authentication.AddFlags(fs)
	for name, also := range map[string]string{
		"client-ca-file":           "If unset, an authority in --data-dir is used and an administrator's kubeconfig is written.",
		"service-account-issuer":   "If unset, " + server.DefaultIssuer + " is.",
		"service-account-key-file": "If unset, the signing key is used.",
	} {
		flag := fs.Lookup(name)
		flag.Usage = strings.ReplaceAll(flag.Usage, "If unspecified, --tls-private-key-file is used. ", "") + " " + also
	}
	fs.StringVar(&o.config.Signing.KeyFile, "service-account-signing-key-file", o.config.Signing.KeyFile,
		"File with the private key that signs service-account tokens. If unset, one is made in --data-dir.")
	fs.StringVar(&o.config.Signing.Endpoint, "service-account-signing-endpoint", o.config.Signing.Endpoint,
		"Socket at which an external signer of service-account tokens listens. Excludes --service-account-signing-key-file and --service-account-key-file.")
}

// authorization adds upstream's flags.
func (o *options) authorization(fs *pflag.FlagSet) {
	modes := o.config.Authorization.Modes
	o.config.Authorization.AddFlags(fs)
	if len(modes) > 0 {
		flag := fs.Lookup("authorization-mode")
		flag.Usage = strings.Replace(flag.Usage, "Defaults to AlwaysAllow if", "Defaults to "+strings.Join(modes, ",")+" if", 1)
		flag.DefValue = "[]" // help omits an empty list: the usage names the default
	}
}

func (o *options) aggregation(fs *pflag.FlagSet) {
	a := &o.config.Aggregation
	fs.StringVar(&a.CertFile, "proxy-client-cert-file", a.CertFile,
		"Certificate file that proves to aggregated API servers who hands requests on to them. Read again when it changes.")
	fs.StringVar(&a.KeyFile, "proxy-client-key-file", a.KeyFile, "Key file of --proxy-client-cert-file.")
	fs.BoolVar(&a.EndpointRouting, "enable-aggregator-routing", a.EndpointRouting,
		"Hand requests on to the endpoints of aggregated API servers' services instead of cluster IPs.")
	fs.BoolVar(&a.RejectRedirects, "aggregator-reject-forwarding-redirect", a.RejectRedirects,
		"Answer 502 where an aggregated API server redirects the client.")
}

func (o *options) services(fs *pflag.FlagSet) {
	s := &o.config.Services
	fs.DurationVar(&o.config.EventTTL, "event-ttl", o.config.EventTTL, "How long events are kept. 0 keeps them for ever.")
	fs.Var(&ipRanges{ranges: &s.ClusterIPRanges}, "service-cluster-ip-range",
		"Range of addresses for services, as CIDR; two of different families, comma separated, for dual stack.")
	fs.Var(&s.NodePorts, "service-node-port-range", "Range of ports for services of type NodePort, both ends included, as 30000-32767.")
	fs.StringVar((*string)(&s.EndpointReconciler), "endpoint-reconciler-type", string(s.EndpointReconciler),
		"How this server enters itself into the endpoints of the kubernetes service: "+strings.Join(reconcilers.AllTypes.Names(), ", ")+". A server stays out of endpoints that other living servers have published with another port, unless its name is kube-apiserver.")
	fs.IntVar(&s.Instances, "apiserver-count", s.Instances, "How many API servers there are, for --endpoint-reconciler-type=master-count.")
	if err := fs.MarkDeprecated("apiserver-count", "use --endpoint-reconciler-type=lease."); err != nil {
		panic(err)
	}
	fs.BoolVar(&o.config.AllowPrivileged, "allow-privileged", o.config.AllowPrivileged,
		"Let pods have privileged containers, as those of most network plugins and of kube-proxy are.")
}

func (o *options) larder(fs *pflag.FlagSet) {
	fs.StringVar(&o.config.DataDir, "data-dir", o.config.DataDir,
		"Directory of the embedded etcd and of generated certificates, keys and the administrator's kubeconfig. With --etcd-servers and without this flag, a temporary directory is used and removed when the server ends.")
	fs.Var(&indexLabels{labels: &o.config.IndexLabels}, "index-labels",
		"Labels to index, as resource[.group]=key,... May be repeated. A selector of one value of such a label uses the index. Indexes of other labels are built when they are often needed.")
	fs.Var(&cacheBytes{all: &o.config.CacheBytes, shares: &o.config.CacheShares}, "cache-max-bytes",
		"Limit of cached encodings and past events, in bytes; the objects themselves are not counted. Events are kept for 90 seconds, or for --request-timeout and 15 seconds if that is more. With too little room, encodings are made for each request, and watches can resume from recent revisions only. Resources can have shares of their own, as in 2Gi,pods=512Mi,events=64Mi, or without the first figure: such a resource takes its share and no more, and others take nothing from it. 0 is half the size of all objects for encodings, at least 144 MiB, and twice that size with events, at least 256 MiB; both at most 3/8 of a memory limit, less the shares. -1 sets no limit except the shares.")
	fs.BoolVar(&o.revoke, "revoke-watches", o.revoke,
		"End a watch within five seconds after its user loses the right to it: the role, the token, or the CA of the certificate. If false, a watch runs until its timeout, as in kube-apiserver.")
	fs.IntVar(&o.config.Serving.MaxConnections, "max-connections", o.config.Serving.MaxConnections,
		"Limit of open connections. Further connections are closed at once, so one client can lock out all others; --max-connections-per-address prevents that. 0 sets no limit.")
	fs.IntVar(&o.config.Serving.MaxConnectionsPerAddress, "max-connections-per-address", o.config.Serving.MaxConnectionsPerAddress,
		"Limit of open connections from one IPv4 address or one IPv6 /64. Behind a load balancer all clients may share one address. 0 sets no limit.")
	fs.Int64Var(&o.config.Store.ReplayRevisions, "replay-revisions", o.config.Store.ReplayRevisions,
		"How many past revisions a start replays at most, so that clients can resume watches from before the restart. Ten thousand take about a second. 0 replays none.")
	fs.BoolVar(&o.config.Checkpoints, "checkpoints", o.config.Checkpoints,
		"For test suites: users who may post to /larder/checkpoints can save the state of all objects under a name and reset to it, without admission and finalizers. See `larder checkpoint`.")
	fs.BoolVar(&o.config.StatusPage, "status-page", o.config.StatusPage,
		"Serve a status page at /larder/. Its data at /larder/status needs the right to get that path. The page itself has no data and is open to everyone.")
	check := &o.config.Store.CheckInterval
	fs.DurationVar(check, "consistency-check-interval", *check,
		"How often each cache's keys and revisions are compared with etcd's. A cache that differs is reloaded. 0 disables the check.")
	fs.DurationVar(check, "self-audit-interval", *check, "The former name of --consistency-check-interval.")
	if err := fs.MarkDeprecated("self-audit-interval", "use --consistency-check-interval."); err != nil {
		panic(err)
	}
	fs.Int64Var(&o.config.Store.QuotaBytes, "quota-backend-bytes", o.config.Store.QuotaBytes,
		"Size limit of the embedded etcd's database, in bytes. When it is reached, old revisions are compacted, and writes are refused until there is room. 0 is 8 GiB.")
	fs.DurationVar(&o.config.Store.DefragmentInterval, "defrag-interval", o.config.Store.DefragmentInterval,
		"How often the embedded etcd's database is checked. If at least half of it and 64 MiB are free, it is defragmented, and writes wait. 0 never does that.")
	fs.BoolVar(&o.config.Store.UnsafeNoFsync, "unsafe-no-fsync", o.config.Store.UnsafeNoFsync,
		"For tests: the embedded etcd does not wait for the disk. The last acknowledged writes are lost if the machine stops.")
	fs.BoolVar(&o.config.TestControllers, "test-controllers", o.config.TestControllers,
		"Run the controllers that most tests need: they empty deleted namespaces, delete objects without owners, and create the default service account and kube-root-ca.crt of each namespace. Never run them beside a kube-controller-manager or in two servers of one store.")
	fs.BoolVarP(&o.quiet, "quiet", "q", o.quiet, "Print no progress.")
}

// ipRanges is the flag value of a list of CIDRs.
type ipRanges struct{ ranges *[]*net.IPNet }

func (r *ipRanges) String() string {
	var all []string
	for _, cidr := range *r.ranges {
		all = append(all, cidr.String())
	}
	return strings.Join(all, ",")
}

// Set replaces the list.
func (r *ipRanges) Set(value string) error {
	var ranges []*net.IPNet
	if value == "" {
		*r.ranges = nil
		return nil
	}
	for i, cidr := range strings.Split(value, ",") {
		_, parsed, err := netutils.ParseCIDRSloppy(cidr)
		if err != nil { // kubernetes cmd/kube-apiserver/app/options/completion.go
			return fmt.Errorf("service-cluster-ip-range[%d] is not %s", i, [...]string{"a valid cidr", "an ip net"}[min(i, 1)])
		}
		ranges = append(ranges, parsed)
	}
	*r.ranges = ranges
	return nil
}

// Type implements pflag.Value.
func (r *ipRanges) Type() string { return "string" }
