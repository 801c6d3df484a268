package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	upstream "k8s.io/kubernetes/cmd/kube-apiserver/app/options"

	"github.com/larder-io/larder/cmd/larder/internal/server"
)

func upstreamFlags() *pflag.FlagSet {
	o, fs := newOptions(server.DefaultKubeAPIServer()), pflag.NewFlagSet(kubeAPIServerName, pflag.ContinueOnError)
	o.addTo(fs)
	return fs
}

// TestUpstreamFlags checks that Larder has every flag of kube-apiserver, with its type, shorthand and default.
func TestUpstreamFlags(t *testing.T) {
	ours, sections := upstreamFlags(), upstream.NewServerRunOptions().Flags()
	for _, section := range sections.Order {
		sections.FlagSets[section].VisitAll(func(want *pflag.Flag) {
			got := ours.Lookup(want.Name)
			switch {
			case got == nil:
				t.Errorf("unknown flag: --%s", want.Name)
			case got.Value.Type() != want.Value.Type(), got.Shorthand != want.Shorthand, got.NoOptDefVal != want.NoOptDefVal:
				t.Errorf("--%s: type %s, shorthand %q, without a value %q; want %s, %q, %q", want.Name,
					got.Value.Type(), got.Shorthand, got.NoOptDefVal, want.Value.Type(), want.Shorthand, want.NoOptDefVal)
			case got.Value.String() != want.Value.String():
				t.Errorf("--%s: default %q, want %q", want.Name, got.Value, want.Value)
			case (got.Deprecated == "") != (want.Deprecated == ""), got.Hidden != want.Hidden:
				t.Errorf("--%s: deprecated %q, hidden %v; want %q, %v", want.Name, got.Deprecated, got.Hidden, want.Deprecated, want.Hidden)
			}
		})
	}
}

// TestUpstreamPackagesAreLinked checks that Larder links every package of kube-apiserver but those of its command line
// and of its version metric. Some packages have effects by being linked: log formats, metrics, time zones of CronJobs.
func TestUpstreamPackagesAreLinked(t *testing.T) {
	linked := func(program string) []string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", program).Output()
		if err != nil {
			t.Fatalf("go list %s: %v", program, err)
		}
		return strings.Fields(string(out))
	}
	const upstreamProgram = "k8s.io/kubernetes/cmd/kube-apiserver"
	own := append(linked("."), upstreamProgram, upstreamProgram+"/app",
		"k8s.io/component-base/cli", "k8s.io/component-base/cli/globalflag", "k8s.io/component-base/version/verflag",
		"k8s.io/component-base/metrics/prometheus/version")
	for _, name := range linked(upstreamProgram) {
		if !slices.Contains(own, name) {
			t.Errorf("%s is not linked", name)
		}
	}
}

// TestFlagsOfKnownInstallersAreAccepted checks flags with which other programs start kube-apiserver, including
// flags that were removed recently, and that unknown flags and bad values are refused.
func TestFlagsOfKnownInstallersAreAccepted(t *testing.T) {
	for name, args := range map[string][]string{
		"kubeadm": {
			"--advertise-address=172.18.0.2", "--allow-privileged=true", "--authorization-mode=Node,RBAC", "--client-ca-file=/c",
			"--enable-admission-plugins=NodeRestriction", "--enable-bootstrap-token-auth=true", "--etcd-cafile=/c", "--etcd-certfile=/c",
			"--etcd-keyfile=/c", "--etcd-servers=https://127.0.0.1:2379", "--kubelet-client-certificate=/c", "--kubelet-client-key=/c",
			"--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname", "--proxy-client-cert-file=/c", "--proxy-client-key-file=/c",
			"--requestheader-allowed-names=front-proxy-client", "--requestheader-client-ca-file=/c", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
			"--requestheader-group-headers=X-Remote-Group", "--requestheader-username-headers=X-Remote-User", "--secure-port=6443",
			"--service-account-issuer=https://kubernetes.default.svc.cluster.local", "--service-account-key-file=/c", "--service-account-signing-key-file=/c",
			"--service-cluster-ip-range=10.96.0.0/16,fd00:10:96::/112", "--tls-cert-file=/c", "--tls-private-key-file=/c",
		},
		"kind":               {"--runtime-config=", "--feature-gates=KubeletInUserNamespace=true"},
		"kind with settings": {"--runtime-config=api/alpha=true,batch/v1=false", "--feature-gates=InPlacePodVerticalScaling=true"},
		"kwok": {
			"--etcd-prefix=/registry", "--allow-privileged=true", "--admission-control=", "--max-requests-inflight=0",
			"--max-mutating-requests-inflight=0", "--enable-priority-and-fairness=false", "--tracing-config-file=/c", "--v=4",
			"--audit-policy-file=/c", "--audit-log-path=/l", "--bind-address=0.0.0.0",
		},
		"k3s":           {"--storage-backend=etcd3", "--profiling=false", "--service-node-port-range=30000-32767", "--egress-selector-config-file=/c", "--api-audiences=a,b"},
		"test-cmd":      {"--token-auth-file=/c", "--service-account-lookup=true", "--storage-media-type=application/json", "--version=" + server.Version().GitVersion + "-custom"},
		"underscores":   {"--etcd_servers=http://a:1", "--v", "2", "-v", "3"},
		"removed":       {"--cloud-provider=external", "--cloud-config=", "--kubelet-port=10250", "--apiserver-count=3", "--default-watch-cache-size=100"},
		"fabric8 twice": {"--service-account-issuer", "a", "--service-account-issuer", "a", "--allow-privileged"},
	} {
		fs := upstreamFlags()
		fs.SetOutput(t.Output())
		if err := fs.Parse(args); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, args := range [][]string{{"--insecure-port=0"}, {"--nothing"}, {"--version=v1.2.3"}, {"--secure-port=x"}} {
		if err := upstreamFlags().Parse(args); err == nil {
			t.Errorf("%v is accepted", args)
		}
	}
}
