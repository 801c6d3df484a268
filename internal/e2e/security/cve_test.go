package security

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// attack is a test for published vulnerabilities of one kind.
type attack struct {
	ids  []string // published identifiers
	what string
	run  func(t *testing.T, f *hardenedServer)
}

func attacks() []attack {
	return []attack{
		{[]string{"CVE-2018-1002105"}, "a rejected upgrade leaves a tunnel open", rejectedUpgrade},
		{[]string{"CVE-2018-1002102", "CVE-2020-8559"}, "an upgrade whose response is a redirect is followed", redirectedUpgrade},
		{[]string{"CVE-2022-3172"}, "an aggregated server redirects clients", redirectedClient},
		{[]string{"CVE-2022-3294", "CVE-2020-8562"}, "a node's address leads the proxy to the server's own network", nodeAddress},
		{[]string{"CVE-2020-8561"}, "a webhook redirects the server", redirectedWebhook},
		{nil, "a webhook switches protocols, and the write never ends", switchingWebhook},
		{[]string{"CVE-2019-11247"}, "access to cluster-scoped custom resources by the path of a namespace", clusterScoped},
		{[]string{"CVE-2022-3162"}, "a right to one custom resource gives access to others of its group", otherResource},
		{[]string{"CVE-2015-5305"}, "names that form other keys in the store", keyTraversal},
		{[]string{"CVE-2016-1905"}, "admission does not see the patched object", patchedObject},
		{[]string{"CVE-2021-25735"}, "admission of nodes gets new values as old ones", oldObject},
		{[]string{"CVE-2019-1002100"}, "JSON patches that never end", jsonPatches},
		{[]string{"CVE-2019-11253", "CVE-2019-11254"}, "YAML and JSON that never end", laughs},
		{[]string{"CVE-2020-8552"}, "requests make metrics grow", metricsGrow},
		{[]string{"CVE-2019-16276"}, "headers with spaces before the colon", spacedHeaders},
		{[]string{"CVE-2023-2727"}, "ephemeral containers bypass the image policy", imagePolicy},
		{[]string{"CVE-2023-2728", "CVE-2024-3177"}, "ephemeral containers and envFrom mount secrets that the account may not", mountableSecrets},
		{[]string{"CVE-2025-4563"}, "nodes get devices for mirror pods", mirrorPodClaims},
		{[]string{"CVE-2025-5187"}, "a node gets itself deleted with an owner reference", nodeOwner},
		{[]string{"CVE-2021-29923"}, "addresses with leading zeros mean another address", leadingZeros},
		{[]string{"CVE-2023-44487", "CVE-2023-39325", "CVE-2023-45288"}, "endless HTTP/2 streams and frames", floodHTTP2},
		{[]string{"CVE-2016-7075"}, "client certificates with the wrong chain or usage", clientCertificates},
		{[]string{"CVE-2020-8554"}, "external IPs of services intercept traffic", externalIPs},
		{[]string{"CVE-2021-25740"}, "endpoints lead to other namespaces", endpoints},
		{[]string{"kubernetes-issue-78741"}, "exec over a websocket with only the right to get", websocketExec},
		{[]string{"CVE-2026-73500"}, "TLS connections without a ClientHello", neverHello},
		{[]string{"CVE-2019-11250", "CVE-2020-8565"}, "credentials are logged", loggedTokens}, // last, because it reads the output of all others
	}
}

// notApplicable has published vulnerabilities of other parts of Kubernetes, or that this server cannot have, and the
// reasons.
func notApplicable() map[string]string {
	return map[string]string{
		"CVE-2024-7598":  "NetworkPolicies that are deleted before the pods of a namespace: the namespace controller decides the order",
		"CVE-2026-2270":  "only the number is published",
		"CVE-2026-76654": "only the number is published",
	}
}

// TestKnownAttacksFail runs every attack on one server that has all protections on.
func TestKnownAttacksFail(t *testing.T) {
	f := newHardenedServer(t)
	for _, a := range attacks() {
		t.Run(cmp.Or(strings.Join(a.ids, ","), a.what), func(t *testing.T) {
			t.Log(a.what)
			a.run(t, f)
		})
	}
}

// TestNumbersOfAttacksAreUnique checks that each CVE number appears once, in its published form.
func TestNumbersOfAttacksAreUnique(t *testing.T) {
	ids := slices.Collect(maps.Keys(notApplicable()))
	for _, a := range attacks() {
		ids = append(ids, a.ids...)
	}
	form := regexp.MustCompile(`^(CVE-20[0-9]{2}-[0-9]{4,7}|kubernetes-issue-[0-9]+)$`)
	for i, id := range ids {
		if !form.MatchString(id) || slices.Contains(ids[:i], id) {
			t.Errorf("%s is malformed, or occurs twice", id)
		}
	}
}

// bind gives rights in the whole cluster to a user, or to a group if subject begins with @.
func (s *server) bind(t *testing.T, name, subject, rules string) {
	t.Helper()
	kind := "User"
	if group, ok := strings.CutPrefix(subject, "@"); ok {
		kind, subject = "Group", group
	}
	const rbac = "/apis/rbac.authorization.k8s.io/v1/"
	s.create(t, rbac+"clusterroles", fmt.Sprintf(`{"metadata":{"name":%q},"rules":[%s]}`, name, rules))
	s.create(t, rbac+"clusterrolebindings", fmt.Sprintf(`{"metadata":{"name":%q},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":%[1]q},`+
		`"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":%q,"name":%q}]}`, name, kind, subject))
}
