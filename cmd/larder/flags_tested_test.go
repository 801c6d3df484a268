package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	upstream "k8s.io/kubernetes/cmd/kube-apiserver/app/options"
)

// testedBy names the test, and its directory, that fails if a flag of kube-apiserver loses its effect. flag@consumer
// is the effect on one of the flag's consumers.
func testedBy() map[string]string {
	return map[string]string{
		"internal/e2e.TestAccessConfigFlagsTakeEffect":                             "authentication-config authorization-config",
		"internal/e2e.TestAccessWebhookFlagsTakeEffect":                            "authentication-token-webhook-cache-ttl authentication-token-webhook-config-file authentication-token-webhook-version authorization-webhook-cache-authorized-ttl authorization-webhook-cache-unauthorized-ttl authorization-webhook-config-file authorization-webhook-version",
		"internal/e2e.TestClientsInServicesGetTheServiceAddress":                   "service-cluster-ip-range@discovery",
		"internal/e2e.TestAggregatedRequestsAreProxied":                            "proxy-client-cert-file proxy-client-key-file",
		"internal/e2e.TestAuditFlagsTakeEffect":                                    "audit-log-compress audit-log-format audit-log-maxage audit-log-maxbackup audit-log-maxsize audit-log-mode audit-log-path audit-log-truncate-enabled audit-log-truncate-max-batch-size audit-log-truncate-max-event-size audit-policy-file audit-webhook-batch-buffer-size audit-webhook-batch-max-size audit-webhook-batch-max-wait audit-webhook-batch-throttle-enable audit-webhook-config-file audit-webhook-initial-backoff audit-webhook-mode",
		"internal/e2e.TestCiphersAndCurves":                                        "tls-cipher-suites tls-curve-preferences",
		"internal/e2e.TestCoordinatedLeadership":                                   "coordinated-leadership-lease-duration coordinated-leadership-renew-deadline coordinated-leadership-retry-period",
		"internal/e2e.TestCountMetric":                                             "etcd-count-metric-poll-period",
		"internal/e2e.TestCRDsCanBeDisabled":                                       "runtime-config@definitions",
		"internal/e2e.TestServerServesWhileItDrains":                               "shutdown-delay-duration",
		"internal/e2e.TestEgressConsumers":                                         "egress-selector-config-file@issuers egress-selector-config-file@authentication egress-selector-config-file@authorization egress-selector-config-file@audit egress-selector-config-file@traces egress-selector-config-file@pods egress-selector-config-file@services",
		"internal/e2e.TestEgressSelector":                                          "egress-selector-config-file@etcd egress-selector-config-file@webhooks-by-url",
		"internal/e2e.TestEmulatedVersion":                                         "emulated-version runtime-config-emulation-forward-compatible",
		"internal/e2e.TestEmulationAndMetricsFlagsTakeEffect":                      "allow-metric-labels disabled-metrics emulation-forward-compatible min-compatibility-version show-hidden-metrics-for-version",
		"internal/e2e.TestEncryptionAtRest":                                        "encryption-provider-config-automatic-reload encryption-provider-config",
		"internal/e2e.TestEtcdPrefixes":                                            "etcd-prefix@built-in etcd-prefix@custom etcd-prefix@records etcd-prefix@health etcd-prefix@checkpoints etcd-prefix@metrics",
		"internal/e2e.TestExternalSigner":                                          "service-account-signing-endpoint",
		"cmd/larder.TestFlagsAtTheirEdges":                                         "advertise-address@family service-cluster-ip-range@family",
		"internal/e2e.TestHTTP2FlagsTakeEffect":                                    "goaway-chance http2-max-streams-per-connection disable-http2-serving",
		"internal/e2e.TestHealthWhileStarting":                                     "livez-grace-period storage-initialization-timeout",
		"internal/e2e.TestLimitFlagsTakeEffect":                                    "authorization-mode enable-priority-and-fairness max-mutating-requests-inflight token-auth-file request-timeout@deadlines max-requests-inflight min-request-timeout",
		"internal/e2e.TestLogFlagsTakeEffect":                                      "logging-format v",
		"internal/e2e.TestNames":                                                   "help",
		"internal/e2e.TestObjectFlagsTakeEffect":                                   "allow-privileged default-not-ready-toleration-seconds default-unreachable-toleration-seconds disable-admission-plugins event-ttl lease-reuse-duration-seconds service-node-port-range advertise-address@endpoints service-cluster-ip-range@allocator watch-cache-sizes",
		"internal/e2e.TestPeers":                                                   "peer-advertise-ip peer-advertise-port peer-ca-file",
		"internal/e2e.TestProfilingFlagTakesEffect":                                "profiling@profiles profiling@verbosity profiling@metrics profiling@slis",
		"internal/e2e.TestStoppingServersSendRetryAfter":                           "shutdown-send-retry-after shutdown-watch-termination-grace-period",
		"internal/e2e.TestRollingRestart":                                          "bind-address cert-dir endpoint-reconciler-type secure-port service-account-key-file service-account-signing-key-file etcd-servers",
		"internal/e2e.TestServerCountTakesEffect":                                  "apiserver-count@definitions apiserver-count@endpoints",
		"internal/e2e.TestStoresByResource":                                        "etcd-servers-overrides@checkpoint etcd-servers-overrides@compaction etcd-servers-overrides@custom etcd-servers-overrides@metrics etcd-servers-overrides@resume etcd-servers-overrides@snapshot",
		"internal/e2e.TestServersOverrides":                                        "etcd-servers-overrides@objects etcd-servers-overrides@health etcd-servers-overrides@componentstatuses",
		"internal/e2e.TestServicesAreResolved":                                     "egress-selector-config-file@webhooks-by-service egress-selector-config-file@conversion egress-selector-config-file@aggregated enable-aggregator-routing@webhooks enable-aggregator-routing@conversion enable-aggregator-routing@aggregated",
		"internal/e2e.TestServingFlagsTakeEffect":                                  "cors-allowed-origins permit-port-sharing strict-transport-security-directives tls-min-version tls-sni-cert-key",
		"internal/e2e.TestStatusPages":                                             "contention-profiling@profiles enable-logs-handler",
		"internal/e2e.TestStorageAndAPIFlagsTakeEffect":                            "contention-profiling@socket debug-socket-path delete-collection-workers enable-garbage-collector feature-gates kubernetes-service-node-port version runtime-config@built-in watch-cache storage-media-type",
		"internal/e2e.TestTokenFlagsTakeEffect":                                    "anonymous-auth api-audiences external-hostname service-account-extend-token-expiration service-account-issuer service-account-jwks-uri service-account-max-token-expiration",
		"internal/e2e.TestTracing":                                                 "tracing-config-file",
		"internal/e2e.TestUpstreamMistakes":                                        "storage-backend runtime-config@registrations",
		"httpapi.TestRequestsWaitAFourthOfTheirTime":                               "request-timeout@queues",
		"httpapi.TestShutdownDoesNotWaitForStuckReaders":                           "request-timeout@shutdown",
		"httpapi/aggregator.TestRedirectsAreFollowedUnlessRejected":                "aggregator-reject-forwarding-redirect",
		"internal/auth.TestInvalidAuthorizationConfigs":                            "authorization-policy-file",
		"internal/auth.TestBootstrapTokens":                                        "enable-bootstrap-token-auth",
		"internal/auth.TestOnlyFrontProxiesNameUsers":                              "requestheader-uid-headers",
		"internal/auth.TestOpenIDConnectFlags":                                     "oidc-ca-file oidc-client-id oidc-groups-claim oidc-groups-prefix oidc-issuer-url oidc-required-claim oidc-signing-algs oidc-username-claim oidc-username-prefix",
		"internal/e2e/nodes.TestPreferredKubeletAddressIsUsed":                     "kubelet-preferred-address-types",
		"internal/e2e/nodes.TestKubeletsAreVerifiedByCertificate":                  "kubelet-certificate-authority kubelet-client-certificate kubelet-client-key kubelet-port",
		"internal/e2e/nodes.TestKubeletsBeyondAProxy":                              "egress-selector-config-file@kubelets",
		"internal/registry.TestHistoryHasRoomForItsAge":                            "request-timeout@history",
		"internal/e2e/security.TestTenantsSeeNoForeignData":                        "admission-control-config-file client-ca-file enable-admission-plugins requestheader-allowed-names requestheader-client-ca-file requestheader-extra-headers-prefix requestheader-group-headers requestheader-username-headers",
		"cmd/larder/internal/server.TestEstablishMakesWhatIsMissing":               "advertise-address@certificate service-cluster-ip-range@certificate",
		"cmd/larder/internal/server.TestEstablishMakesNothingThatWasGiven":         "tls-cert-file tls-private-key-file",
		"cmd/larder/internal/server/storestats.TestHealthResultIsReusedForASecond": "etcd-healthcheck-timeout etcd-readycheck-timeout",
		"kv.TestTLSToEtcdIsVerifiedByBothSides":                                    "etcd-cafile etcd-certfile etcd-keyfile",
		"kv.TestStoresTakeTurnsToCompact":                                          "etcd-compaction-interval",
	}
}

// consumers are the parts of kube-apiserver that read a flag with several readers, according to its source.
func consumers() map[string]string {
	return map[string]string{
		"advertise-address":           "certificate endpoints family",
		"apiserver-count":             "definitions endpoints",
		"contention-profiling":        "profiles socket",
		"egress-selector-config-file": "aggregated audit authentication authorization conversion etcd issuers kubelets pods services traces webhooks-by-service webhooks-by-url",
		"enable-aggregator-routing":   "aggregated conversion webhooks",
		"etcd-prefix":                 "built-in checkpoints custom health metrics records",
		"etcd-servers-overrides":      "checkpoint compaction componentstatuses custom health metrics objects resume snapshot",
		"profiling":                   "metrics profiles slis verbosity",
		"request-timeout":             "deadlines history queues shutdown",
		"runtime-config":              "built-in definitions registrations",
		"service-cluster-ip-range":    "allocator certificate discovery family",
	}
}

// passedOn are flags that are handed to upstream's libraries, which do all that they mean;
// upstream's tests hold it.
const passedOn = `
admission-control allow-metric-labels-manifest audit-log-batch-buffer-size audit-log-batch-max-size
audit-log-batch-max-wait audit-log-batch-throttle-burst audit-log-batch-throttle-enable
audit-log-batch-throttle-qps audit-log-version audit-webhook-batch-initial-backoff
audit-webhook-batch-throttle-burst audit-webhook-batch-throttle-qps audit-webhook-truncate-enabled
audit-webhook-truncate-max-batch-size audit-webhook-truncate-max-event-size audit-webhook-version
default-watch-cache-size etcd-db-metric-poll-interval
kubelet-read-only-port kubelet-timeout log-flush-frequency log-json-info-buffer-size
log-json-split-stream log-text-info-buffer-size log-text-split-stream max-connection-bytes-per-sec
permit-address-sharing service-account-lookup vmodule`

// TestEveryFlagHasATest checks that each flag of kube-apiserver has a test of its effect. A flag with several
// consumers needs a test for each. Flags that only upstream's code uses need none.
func TestEveryFlagHasATest(t *testing.T) {
	said := make(map[string][]string)
	for test, flags := range testedBy() {
		if err := findTest(test); err != nil {
			t.Error(err)
		}
		for _, flag := range strings.Fields(flags) {
			said[flag] = append(said[flag], test)
		}
	}
	for _, flag := range strings.Fields(passedOn) {
		said[flag] = append(said[flag], "upstream")
	}
	upstreamFlags() // makes feature gates known that upstream's options would make known twice
	sections := upstream.NewServerRunOptions().Flags()
	for _, section := range sections.Order {
		sections.FlagSets[section].VisitAll(func(f *pflag.Flag) {
			effects := []string{f.Name}
			if several, ok := consumers()[f.Name]; ok {
				effects = nil
				for consumer := range strings.FieldsSeq(several) {
					effects = append(effects, f.Name+"@"+consumer)
				}
			}
			for _, effect := range effects {
				if len(said[effect]) != 1 {
					t.Errorf("--%s is held by %q", effect, said[effect])
				}
				delete(said, effect)
			}
		})
	}
	for _, flag := range []string{"help", "version", "v", "vmodule", "log-flush-frequency"} { // of the command
		delete(said, flag)
	}
	for flag := range said {
		t.Errorf("--%s is no flag of kube-apiserver, or no consumer of one", flag)
	}
}

// findTest looks for a test, "directory.TestName".
func findTest(name string) error {
	dot := strings.LastIndexByte(name, '.')
	files, err := filepath.Glob(filepath.Join("..", "..", filepath.FromSlash(name[:dot]), "*_test.go"))
	if err != nil {
		return err
	}
	declared := regexp.MustCompile(`(?m)^func ` + name[dot+1:] + `\(t \*testing\.T\)`)
	found := slices.ContainsFunc(files, func(file string) bool {
		text, err := os.ReadFile(file)
		return err == nil && declared.Match(text)
	})
	if !found {
		return fmt.Errorf("there is no test %s", name)
	}
	return nil
}
