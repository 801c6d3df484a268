package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
)

// nodesOfTest is how many nodes the cluster of TestClusterRunsWorkloads has.
const nodesOfTest = 20

// TestClusterRunsWorkloads runs unmodified controllers, an unmodified scheduler and kwok over Larder. All workloads
// run concurrently, each in its own namespace, which is deleted at the end. None of the programs may log an error
// that the server may have caused, except those that they log over any API server.
func TestClusterRunsWorkloads(t *testing.T) {
	r := start(t, nodesOfTest)
	before := r.everything(t)
	t.Run("at once", func(t *testing.T) {
		for name, test := range map[string]func(*testing.T, *running, string){
			"deployment":   testDeployment,
			"disruption":   testDisruption,
			"jobs":         testJobs,
			"cronjob":      testCronJob,
			"statefulset":  testStatefulSet,
			"daemonset":    testDaemonSet,
			"claims":       testClaims,
			"autoscaler":   testAutoscaler,
			"quota":        testQuota,
			"garbage":      testGarbage,
			"kubelet":      testKubelet,
			"tokens":       testTokens,
			"certificates": testCertificates,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, r, r.namespace(t, name))
			})
		}
	})
	for object := range r.everything(t) {
		if !before[object] && !strings.Contains(object, "/default/") && !strings.Contains(object, "/kube-") {
			t.Errorf("left: %s", object)
		}
	}
	for line := range strings.Lines(r.Output()) {
		if headed.MatchString(line) && !matches(expected, line) {
			t.Errorf("the server logs: %s", line)
		}
	}
	if failed := r.failures(t); len(failed) > 0 {
		t.Errorf("the server failed:\n%s", strings.Join(failed, "\n"))
	}
	if complaints := r.complaints(); len(complaints) > 0 {
		slices.Sort(complaints)
		t.Errorf("%d errors logged:\n%.8000s", len(complaints), strings.Join(complaints, "\n"))
	}
}

// failures returns the server's counters of failed requests that are not 0.
func (r *running) failures(t *testing.T) (failed []string) {
	t.Helper()
	text, err := r.client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	must(t, err)
	requests := 0
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "apiserver_request_total{") {
			requests++
			if strings.Contains(line, `code="5`) && !strings.Contains(line, `subresource="/readyz"`) { // /readyz returns 500 for a moment
				failed = append(failed, strings.TrimSpace(line))
			}
		}
	}
	if requests < 100 {
		t.Errorf("only %d kinds of requests are counted", requests)
	}
	return failed
}

// everything lists all objects of all kinds, as group/resource/namespace/name.
func (r *running) everything(t *testing.T) map[string]bool {
	t.Helper()
	client, err := metadata.NewForConfig(r.config)
	must(t, err)
	lists, err := r.client.Discovery().ServerPreferredResources()
	must(t, err)
	all := make(map[string]bool)
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		must(t, err)
		for _, resource := range list.APIResources {
			if !slices.Contains(resource.Verbs, "list") {
				continue
			}
			objects, err := client.Resource(version.WithResource(resource.Name)).List(context.Background(), metav1.ListOptions{})
			must(t, err)
			for _, o := range objects.Items {
				all[fmt.Sprintf("%s/%s/%s/%s", version.Group, resource.Name, o.Namespace, o.Name)] = true
			}
		}
	}
	return all
}
