package main

import (
	"errors"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
	upstream "k8s.io/kubernetes/cmd/kube-apiserver/app/options"

	"github.com/larder-io/larder/cmd/larder/internal/server"
	"github.com/larder-io/larder/cmd/larder/internal/server/pki"
)

// edges are the values at which a flag of a type is tried.
func edges(flag *pflag.Flag) []string {
	switch flag.Value.Type() {
	case "int", "int32", "uint", "int64", "float64", "float32":
		return []string{"0", "-1", "1", "65535", "65536", "2147483648", "0.5", "", "x"}
	case "duration":
		return []string{"0", "0s", "-1s", "1ns", "1s", "100000h", "", "5", "x"}
	case "bool":
		return []string{"true", "false", "", "maybe"}
	case "ip":
		return []string{"0.0.0.0", "::", "::1", "127.0.0.1", "192.0.2.1", "2001:db8::1", "", "x"}
	case "portRange":
		return []string{"0-0", "30000-32767", "30000+10", "1", "9-1", "0-70000", "", "x"}
	case "mapStringString": // upstream looks at their parts in any order
		return []string{"", "x", "a=b", "a#b", "0", "-1"}
	default:
		return []string{"", "x", "a,b", "a=b", "a#b", "0", "-1"}
	}
}

// mistakes are sets of flags that are wrong together, or where a value is of another flag's.
var mistakes = []string{
	"--advertise-address=2001:db8::1", "--advertise-address=2001:db8::1 --service-cluster-ip-range=fd00::/112",
	"--advertise-address=192.0.2.1 --service-cluster-ip-range=fd00::/112", "--advertise-address=2001:db8::1 --endpoint-reconciler-type=none",
	"--advertise-address=2001:db8::1 --service-cluster-ip-range=10.0.0.0/24,fd00::/112", "--max-requests-inflight=0 --max-mutating-requests-inflight=0",
	"--max-requests-inflight=0 --max-mutating-requests-inflight=0 --enable-priority-and-fairness=false",
	"--tls-cert-file=x", "--tls-private-key-file=x", "--tls-cert-file= --cert-dir=", "--etcd-certfile=x", "--etcd-keyfile=x", "--etcd-servers=", "--etcd-servers=http://a:1,http://b:2",
	"--service-account-issuer=", "--service-account-issuer=a --service-account-issuer=b", "--service-account-signing-key-file=", "--service-account-signing-key-file= --service-account-issuer=",
	"--encryption-provider-config-automatic-reload", "--encryption-provider-config-automatic-reload --encryption-provider-config=x",
	"--proxy-client-cert-file=x", "--proxy-client-key-file=x", "--kubernetes-service-node-port=80", "--kubernetes-service-node-port=30000 --service-node-port-range=30000-30001",
	"--authorization-mode=", "--authorization-mode=RBAC,RBAC", "--authorization-mode=Webhook", "--authorization-mode=ABAC", "--authorization-policy-file=x",
	"--coordinated-leadership-lease-duration=1s", "--coordinated-leadership-retry-period=1h", "--coordinated-leadership-renew-deadline=1h",
	"--runtime-config=api/all=false", "--runtime-config=api/all=false,v1=true", "--runtime-config=x/v1=true", "--runtime-config=flowcontrol.apiserver.k8s.io/v1=false",
	"--runtime-config=v1/pods=maybe", "--runtime-config=a/b/c/d=true", "--goaway-chance=0.03", "--request-timeout=-1s --min-request-timeout=-1 --shutdown-delay-duration=-1s",
	"--endpoint-reconciler-type=some", "--apiserver-count=0", "--anonymous-auth --authorization-mode=AlwaysAllow", "--oidc-issuer-url=http://x", "--oidc-issuer-url=https://x",
	"--enable-admission-plugins=Nothing", "--disable-admission-plugins=Nothing", "--enable-admission-plugins=NodeRestriction --disable-admission-plugins=NodeRestriction",
	"--admission-control=AlwaysAdmit --enable-admission-plugins=NodeRestriction", "--audit-log-mode=some", "--audit-log-path=x --audit-log-batch-max-size=0 --audit-log-mode=batch",
	"--etcd-servers-overrides=/events#http://a:1;http://b:2,/pods#http://c:3", "--etcd-servers-overrides=/events", "--watch-cache-sizes=pods#-1", "--watch-cache-sizes=pods#x",
	"--egress-selector-config-file=/no/such/file", "--tracing-config-file=/no/such/file", "--service-cluster-ip-range=10.0.0.0/30,fd00::/126",
	"--service-cluster-ip-range=10.0.0.0/8", "--service-cluster-ip-range=10.0.0.0/29", "--service-cluster-ip-range=10.0.0.0/24,10.1.0.0/24",
	"--service-cluster-ip-range=10.0.0.0/24,fd00::/126", "--service-cluster-ip-range=10.0.0.0/24,fd00::/64", "--service-cluster-ip-range=10.0.0.0/24,fd00::/112,10.1.0.0/24",
	"--service-cluster-ip-range=10.0.0.0", "--service-cluster-ip-range=010.0.0.0/24", "--service-cluster-ip-range=10.0.0.0/24,x", "--service-cluster-ip-range=,", "--service-cluster-ip-range=10.0.0.0/24, fd00::/112",
}

// upstreamErrors returns upstream's errors about flags, from parsing and validation.
func upstreamErrors(t *testing.T, args []string) []string {
	t.Helper()
	o, fs := upstream.NewServerRunOptions(), pflag.NewFlagSet(kubeAPIServerName, pflag.ContinueOnError)
	fs.SetOutput(io.Discard)
	sections := o.Flags()
	for _, section := range sections.FlagSets {
		fs.AddFlagSet(section)
	}
	if err := fs.Parse(args); err != nil {
		return []string{err.Error()}
	}
	completed, err := o.Complete(t.Context())
	if err != nil {
		return []string{err.Error()}
	}
	return lines(errors.Join(completed.Validate()...))
}

// larderErrors is upstreamErrors for Larder.
func larderErrors(args []string) []string {
	o, fs := newOptions(server.DefaultKubeAPIServer()), pflag.NewFlagSet(kubeAPIServerName, pflag.ContinueOnError)
	fs.SetOutput(io.Discard)
	o.addTo(fs)
	if err := fs.Parse(args); err != nil {
		_, cidr, ok := strings.Cut(err.Error(), `for "--service-cluster-ip-range" flag: `) // which is text to upstream's
		if ok {
			return []string{cidr}
		}
		return []string{err.Error()}
	}
	_, err := server.New(o.complete(fs.Changed))
	return lines(err)
}

// lines are the errors that err joins, sorted.
func lines(err error) []string {
	if err == nil {
		return nil
	}
	all := strings.Split(err.Error(), "\n")
	for i := range all {
		all[i] = strings.TrimPrefix(all[i], "auth: ")
	}
	slices.Sort(all)
	return all
}

// TestFlagsAtTheirEdges checks that zeros, negative numbers, empty texts and lists, other address families and
// conflicting flags are refused in kube-apiserver's words, or accepted.
func TestFlagsAtTheirEdges(t *testing.T) {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard) // upstream warns of much that it completes
	t.Cleanup(func() { klog.LogToStderr(true) })
	upstreamFlags() // makes feature gates known that upstream's options would make known twice
	dir := t.TempDir()
	t.Chdir(dir) // upstream makes a certificate in each directory that a flag names
	key := filepath.Join(dir, "key")
	if err := pki.MakeSigningKey(key); err != nil {
		t.Fatal(err)
	}
	base := []string{"--etcd-servers=http://127.0.0.1:1", "--service-account-issuer=https://x.example", "--service-account-signing-key-file=" + key, "--service-account-key-file=" + key, "--cert-dir=" + dir}
	var all [][]string
	sections := upstream.NewServerRunOptions().Flags()
	for _, section := range sections.Order {
		sections.FlagSets[section].VisitAll(func(flag *pflag.Flag) {
			for _, value := range edges(flag) {
				all = append(all, []string{"--" + flag.Name + "=" + value})
			}
		})
	}
	for _, m := range mistakes {
		all = append(all, strings.Fields(m))
	}
	for _, args := range all {
		if skipped(args) {
			continue
		}
		theirs, ours := upstreamErrors(t, append(slices.Clone(base), args...)), larderErrors(append(slices.Clone(base), args...))
		if refused := len(theirs) == 0 && len(ours) > 0 && named(args, refusedAtOnce); !slices.Equal(theirs, ours) && !refused {
			t.Errorf("%s:\n  kube-apiserver: %q\n  Larder:         %q", args, theirs, ours)
		}
	}
}

// refusedAtOnce are flags that kube-apiserver does not validate before it uses them; it then rejects the same values
// as Larder. For two flags it accepts useless values: a request timeout of 0 s, with which no request completes,
// and a negative compaction interval, with which old revisions are compacted without a pause.
const refusedAtOnce = `etcd-certfile etcd-keyfile tls-cert-file tls-private-key-file tls-cipher-suites tls-curve-preferences
tls-min-version cert-dir proxy-client-cert-file proxy-client-key-file endpoint-reconciler-type egress-selector-config-file
tracing-config-file max-requests-inflight request-timeout etcd-compaction-interval`

// notCompared are flags that cannot be compared within one process: they set global state, depend
// on the linker's version stamp or on the machine's addresses, or name files that are read.
const notCompared = `feature-gates emulated-version min-compatibility-version version vmodule v help logging-format
show-hidden-metrics-for-version bind-address`

// named reports whether one of args sets one of the flags.
func named(args []string, flags string) bool {
	return slices.ContainsFunc(args, func(arg string) bool {
		name, _, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		return slices.Contains(strings.Fields(flags), name)
	})
}

// skipped reports whether args are not compared, because the server would connect to a signer or read keys.
func skipped(args []string) bool {
	return named(args, notCompared) || len(args) == 1 && named(args, "service-account-signing-endpoint service-account-signing-key-file") && !strings.HasSuffix(args[0], "=")
}
