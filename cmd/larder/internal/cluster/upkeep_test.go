package cluster

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"k8s.io/utils/ptr"
)

const metricsPath = "/apis/metrics.k8s.io/v1beta1"

// metrics is an aggregated API server that reports for every pod of a namespace twice the CPU of its request.
type metrics struct {
	r  *running
	ns string
}

// ServeHTTP implements http.Handler.
func (m *metrics) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch {
	case req.URL.Path == metricsPath:
		fmt.Fprint(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"metrics.k8s.io/v1beta1","resources":[`+
			`{"name":"pods","singularName":"","namespaced":true,"kind":"PodMetrics","verbs":["get","list"]}]}`)
	case req.URL.Path == "/openapi/v2":
		fmt.Fprint(w, `{"swagger":"2.0","info":{"title":"metrics","version":"1"},"paths":{}}`)
	case req.URL.Path == "/openapi/v3":
		fmt.Fprint(w, `{"paths":{}}`)
	case strings.HasSuffix(req.URL.Path, "/pods"):
		pods, err := m.r.client.CoreV1().Pods(m.ns).List(req.Context(), metav1.ListOptions{LabelSelector: req.URL.Query().Get("labelSelector")})
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		items := []any{}
		if strings.Contains(req.URL.Path, "/namespaces/"+m.ns+"/") || !strings.Contains(req.URL.Path, "/namespaces/") {
			for _, p := range pods.Items {
				items = append(items, map[string]any{
					"metadata": map[string]any{"name": p.Name, "namespace": m.ns}, "timestamp": metav1.Now(), "window": "1s",
					"containers": []any{map[string]any{"name": "c", "usage": map[string]any{"cpu": "200m", "memory": "1Mi"}}},
				})
			}
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "PodMetricsList", "apiVersion": "metrics.k8s.io/v1beta1", "metadata": map[string]any{}, "items": items})
	default:
		http.NotFound(w, req)
	}
}

// serveMetrics has the cluster hand requests for metrics on to such a server.
func (r *running) serveMetrics(t *testing.T, ns string) {
	t.Helper()
	certificate, key, err := cert.GenerateSelfSignedCertKey("metrics."+ns+".svc", nil, nil)
	must(t, err)
	pair, err := tls.X509KeyPair(certificate, key)
	must(t, err)
	server := httptest.NewUnstartedServer(&metrics{r, ns})
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	server.StartTLS()
	_, err = r.client.CoreV1().Services(ns).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "metrics"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	}, metav1.CreateOptions{})
	must(t, err)
	client, err := aggregator.NewForConfig(r.config)
	must(t, err)
	services := client.ApiregistrationV1().APIServices()
	const name = "v1beta1.metrics.k8s.io"
	_, err = services.Create(t.Context(), &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: "metrics.k8s.io", Version: "v1beta1", GroupPriorityMinimum: 100, VersionPriority: 100, CABundle: certificate,
			Service: &apiregistrationv1.ServiceReference{Namespace: ns, Name: "metrics", Port: ptr.To(int32(server.Listener.Addr().(*net.TCPAddr).Port))},
		},
	}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() { // before the namespace is deleted, which sends requests to all servers
		must(t, services.Delete(context.Background(), name, metav1.DeleteOptions{}))
		eventually(t, "metrics.k8s.io is removed", func() error {
			groups, err := r.client.Discovery().ServerGroups()
			if err == nil && strings.Contains(fmt.Sprint(groups.Groups), "metrics.k8s.io") {
				err = fmt.Errorf("discovery still has metrics.k8s.io")
			}
			return err
		})
		server.Close()
	})
}

// testAutoscaler scales a Deployment to its maximum, because an aggregated server reports its pods as busy.
func testAutoscaler(t *testing.T, r *running, ns string) {
	r.serveMetrics(t, ns)
	r.deploy(t, ns, "web", 2)
	_, err := r.client.AutoscalingV2().HorizontalPodAutoscalers(ns).Create(t.Context(), &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}, MaxReplicas: 7,
			Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
				Name: corev1.ResourceCPU, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: ptr.To[int32](50)},
			}}},
		},
	}, metav1.CreateOptions{})
	must(t, err)
	r.rolledOut(t, ns, "web", 7)
	eventually(t, "the autoscaler says that it is at its limit", func() error {
		scaler, err := r.client.AutoscalingV2().HorizontalPodAutoscalers(ns).Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			return err
		}
		is := make(map[autoscalingv2.HorizontalPodAutoscalerConditionType]corev1.ConditionStatus)
		for _, c := range scaler.Status.Conditions {
			is[c.Type] = c.Status
		}
		if is[autoscalingv2.ScalingActive] != corev1.ConditionTrue || is[autoscalingv2.AbleToScale] != corev1.ConditionTrue || is[autoscalingv2.ScalingLimited] != corev1.ConditionTrue {
			return fmt.Errorf("status %+v", scaler.Status)
		}
		return nil
	})
}

// testQuota counts pods of a Deployment, limits them to three, and lets the Deployment grow with the quota.
func testQuota(t *testing.T, r *running, ns string) {
	quotas := r.client.CoreV1().ResourceQuotas(ns)
	hard := func(pods string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourcePods: resource.MustParse(pods), corev1.ResourceRequestsCPU: resource.MustParse("1")}
	}
	_, err := quotas.Create(t.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: hard("3")}}, metav1.CreateOptions{})
	must(t, err)
	used := func(pods, cpu string) {
		t.Helper()
		eventually(t, pods+" pods are counted", func() error {
			q, err := quotas.Get(t.Context(), "q", metav1.GetOptions{})
			if err != nil {
				return err
			}
			p, c := q.Status.Used[corev1.ResourcePods], q.Status.Used[corev1.ResourceRequestsCPU]
			if p.Cmp(resource.MustParse(pods)) != 0 || c.Cmp(resource.MustParse(cpu)) != 0 {
				return fmt.Errorf("used %v", q.Status.Used)
			}
			return nil
		})
	}
	used("0", "0")
	r.deploy(t, ns, "web", 5)
	used("3", "300m")
	eventually(t, "the deployment says why it has no more", func() error {
		d, err := r.client.AppsV1().Deployments(ns).Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range d.Status.Conditions {
			if c.Type == appsv1.DeploymentReplicaFailure && strings.Contains(c.Message, "exceeded quota: q") && d.Status.AvailableReplicas == 3 {
				return nil
			}
		}
		return fmt.Errorf("status %+v", d.Status)
	})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: template(nil).Spec}
	if _, err := r.client.CoreV1().Pods(ns).Create(t.Context(), pod, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a pod too many: %v", err)
	}
	q, err := quotas.Get(t.Context(), "q", metav1.GetOptions{})
	must(t, err)
	q.Spec.Hard = hard("10")
	_, err = quotas.Update(t.Context(), q, metav1.UpdateOptions{})
	must(t, err)
	r.rolledOut(t, ns, "web", 5)
	used("5", "500m")
	r.change(t, ns, "web", func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To[int32](1) })
	used("1", "100m")
}

// testGarbage deletes Deployments before their pods, after them, and without them.
func testGarbage(t *testing.T, r *running, ns string) {
	deployments, pods := r.client.AppsV1().Deployments(ns), r.client.CoreV1().Pods(ns)
	count := func(name string, want int) {
		t.Helper()
		eventually(t, fmt.Sprintf("%s has %d pods left", name, want), func() error {
			left, err := pods.List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + name})
			if err == nil && len(left.Items) != want {
				err = fmt.Errorf("%d pods are left", len(left.Items))
			}
			return err
		})
	}
	for policy, left := range map[metav1.DeletionPropagation]int{
		metav1.DeletePropagationBackground: 0, metav1.DeletePropagationForeground: 0, metav1.DeletePropagationOrphan: 4,
	} {
		name := strings.ToLower(string(policy))
		r.deploy(t, ns, name, 4)
		r.rolledOut(t, ns, name, 4)
		began := time.Now()
		must(t, deployments.Delete(t.Context(), name, metav1.DeleteOptions{PropagationPolicy: &policy}))
		eventually(t, name+" is gone", func() error {
			_, err := deployments.Get(t.Context(), name, metav1.GetOptions{})
			if err == nil {
				return fmt.Errorf("the Deployment still exists after %v", time.Since(began))
			}
			return ignore(err, apierrors.IsNotFound)
		})
		if policy == metav1.DeletePropagationForeground {
			if list, err := pods.List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + name}); err != nil || len(list.Items) > 0 {
				t.Errorf("%d pods outlive their owner: %v", len(list.Items), err)
			}
		}
		count(name, left)
	}
	sets, err := r.client.AppsV1().ReplicaSets(ns).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	if len(sets.Items) != 1 || len(sets.Items[0].OwnerReferences) != 0 {
		t.Errorf("%d replica sets are left", len(sets.Items))
	}
}
