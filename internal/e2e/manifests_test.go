package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/larder-io/larder/internal/proctest"
)

// mutating is a policy that labels bars, and its binding.
const mutating = `apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: label.static.k8s.io}
spec:
  failurePolicy: Fail
  reinvocationPolicy: Never
  matchConstraints: {resourceRules: [{apiGroups: [e2e.example.com], apiVersions: [v1], operations: [CREATE], resources: [bars]}]}
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration: {expression: 'Object{metadata: Object.metadata{labels: {"by": "policy"}}}'}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: label-all.static.k8s.io}
spec: {policyName: label.static.k8s.io}
`

// bars is a CRD with these fields in the spec of its objects.
const bars = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"bars.e2e.example.com"},"spec":{"group":"e2e.example.com","scope":"Namespaced",
"names":{"plural":"bars","singular":"bar","kind":"Bar"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":
{"spec":{"type":"object","properties":{%s}}}}}}]}}`

// TestPoliciesFromFilesFollowCRDs checks that a policy in a file mutates objects with fields that were added to their
// CRD after the server started.
func TestPoliciesFromFilesFollowCRDs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	config := filepath.Join(dir, "admission.yaml")
	for file, text := range map[string]string{
		filepath.Join(dir, "manifests", "policy.yaml"): mutating,
		config: fmt.Sprintf("apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- name: MutatingAdmissionPolicy\n  configuration: "+
			"{apiVersion: apiserver.config.k8s.io/v1, kind: MutatingAdmissionPolicyConfiguration, staticManifestsDir: %q}\n", filepath.Join(dir, "manifests")),
	} {
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := serve(t, "--unsafe-no-fsync", "--feature-gates=ManifestBasedAdmissionControlConfig=true", "--admission-control-config-file="+config)
	k := newKubectl(t, p.kubeconfig(), "default")
	fields := `"one":{"type":"string"}`
	for _, field := range []string{"one", "two"} {
		if field == "two" {
			fields += `,"two":{"type":"string"}`
		}
		k.must(t, fmt.Sprintf(bars, fields), "apply", "-f", "-")
		proctest.Eventually(t, "a bar with spec."+field+" is mutated", func() error {
			bar := `{"apiVersion":"e2e.example.com/v1","kind":"Bar","metadata":{"generateName":"b-"},"spec":{"` + field + `":"x"}}`
			if got := k.run(bar, "create", "-o", "jsonpath={.metadata.labels.by} {.spec."+field+"}", "-f", "-"); got != "policy x" {
				return fmt.Errorf("%s", got)
			}
			return nil
		})
	}
}
