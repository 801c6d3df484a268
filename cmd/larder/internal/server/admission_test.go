package server_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/larder-io/larder/cmd/larder/internal/server/servertest"
	"github.com/larder-io/larder/internal/proctest"
)

// serve starts a server with the default plugins and returns a client of it.
func serve(t *testing.T) kubernetes.Interface {
	t.Helper()
	dir := t.TempDir()
	tokens := filepath.Join(dir, "tokens.csv")
	if err := os.WriteFile(tokens, []byte("admin,admin,admin,system:masters\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	port := proctest.Port(t)
	p := proctest.New(t, "the server", proctest.Role(t, roleVariable, servertest.Config{Dir: filepath.Join(dir, "data"), Tokens: tokens, Port: port}))
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	p.Await(t, "ready after")
	config := &rest.Config{
		Host: fmt.Sprintf("https://127.0.0.1:%d", port), BearerToken: "admin", QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true},
	}
	transport, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(transport.CloseIdleConnections)
	client, err := kubernetes.NewForConfigAndClient(config, transport)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func namespace(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func account(t *testing.T, client kubernetes.Interface, namespace string) {
	t.Helper()
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	if _, err := client.CoreV1().ServiceAccounts(namespace).Create(t.Context(), sa, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func pod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
}

// TestDefaultPluginsChangePodsAndNodes checks that pods need a service account and get its token, a priority and
// tolerations, and that nodes get taints.
func TestDefaultPluginsChangePodsAndNodes(t *testing.T) {
	client := serve(t)
	namespace(t, client, "n")
	pods := client.CoreV1().Pods("n")
	_, err := pods.Create(t.Context(), pod("a"), metav1.CreateOptions{})
	if want := `pods "a" is forbidden: error looking up service account n/default: serviceaccount "default" not found`; !apierrors.IsForbidden(err) || err.Error() != want {
		t.Fatalf("without a service account: %v, want %s", err, want)
	}
	account(t, client, "n")
	made, err := pods.Create(t.Context(), pod("a"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if spec := made.Spec; spec.ServiceAccountName != "default" || len(spec.Volumes) != 1 || spec.Priority == nil || len(spec.Tolerations) != 2 {
		t.Errorf("admitted as %+v", spec)
	}
	node, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if taints := node.Spec.Taints; len(taints) != 1 || taints[0].Key != corev1.TaintNodeNotReady {
		t.Errorf("tainted %v", taints)
	}
}

// TestBindingsCopyLabelsOfTheNodeAsItIs checks that objects that plugins read are decoded once, and again after each
// change.
func TestBindingsCopyLabelsOfTheNodeAsItIs(t *testing.T) {
	client := serve(t)
	namespace(t, client, "n")
	account(t, client, "n")
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{}}}
	node, err := client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i, zone := range []string{"", "a", "a", "b", ""} {
		if delete(node.Labels, corev1.LabelTopologyZone); zone != "" {
			node.Labels = map[string]string{corev1.LabelTopologyZone: zone}
		}
		if node, err = client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err != nil { // the cache has seen it
			t.Fatal(err)
		}
		name := fmt.Sprint("p", i)
		if _, err := client.CoreV1().Pods("n").Create(t.Context(), pod(name), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: name}, Target: corev1.ObjectReference{Kind: "Node", Name: "n"}}
		if err := client.CoreV1().Pods("n").Bind(t.Context(), binding, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		bound, err := client.CoreV1().Pods("n").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got := bound.Labels[corev1.LabelTopologyZone]; got != zone {
			t.Errorf("%s has zone %q, its node %q", name, got, zone)
		}
	}
}

// TestQuotaHoldsAgainstManyCreates checks that as many concurrent creates succeed as the quota allows.
func TestQuotaHoldsAgainstManyCreates(t *testing.T) {
	client := serve(t)
	namespace(t, client, "n")
	const room, tried = 7, 40
	hard := corev1.ResourceList{"count/configmaps": *resource.NewQuantity(room, resource.DecimalSI)}
	quotas := client.CoreV1().ResourceQuotas("n")
	quota, err := quotas.Create(t.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// The controller manager would do this.
	quota.Status = corev1.ResourceQuotaStatus{Hard: hard, Used: corev1.ResourceList{"count/configmaps": *resource.NewQuantity(0, resource.DecimalSI)}}
	if _, err := quotas.UpdateStatus(t.Context(), quota, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	used := func() int64 {
		q, err := quotas.Get(t.Context(), "q", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		count := q.Status.Used["count/configmaps"]
		return count.Value()
	}
	proctest.Eventually(t, "the quota counts", func() error {
		c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "first-"}}
		if _, err := client.CoreV1().ConfigMaps("n").Create(t.Context(), c, metav1.CreateOptions{}); err != nil {
			return err
		}
		if used() == 0 {
			return fmt.Errorf("nothing is used")
		}
		return nil
	})
	var made, refused atomic.Int64
	before := used()
	var all sync.WaitGroup
	for i := range tried {
		all.Go(func() {
			c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("c%d", i)}}
			_, err := client.CoreV1().ConfigMaps("n").Create(t.Context(), c, metav1.CreateOptions{})
			switch {
			case err == nil:
				made.Add(1)
			case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota: q, requested: count/configmaps=1, used: count/configmaps=7, limited: count/configmaps=7"):
				refused.Add(1)
			default:
				t.Errorf("create: %v", err)
			}
		})
	}
	all.Wait()
	if made.Load()+before != room || refused.Load() != tried-made.Load() || used() != room {
		t.Errorf("%d before, %d made, %d refused, %d used", before, made.Load(), refused.Load(), used())
	}
}

// answers is a webhook server: its paths name its actions.
type answers struct {
	*httptest.Server
	called atomic.Int64
	end    chan struct{}
}

func newAnswers(t *testing.T) *answers {
	a := &answers{end: make(chan struct{})}
	a.Server = httptest.NewTLSServer(http.HandlerFunc(a.answer))
	t.Cleanup(a.Close)
	t.Cleanup(func() { close(a.end) })
	return a
}

func (a *answers) answer(w http.ResponseWriter, req *http.Request) {
	a.called.Add(1)
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	response := &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	add := func(key string) {
		kind := admissionv1.PatchTypeJSONPatch
		response.PatchType, response.Patch = &kind, []byte(`[{"op":"add","path":"/data/`+key+`","value":"x"}]`)
	}
	switch req.URL.Path {
	case "/refuse":
		response.Allowed = false
		response.Result = &metav1.Status{Code: http.StatusTeapot, Message: "not so"}
	case "/odd":
		response.Allowed = false
		response.Result = &metav1.Status{Code: 1000, Message: "not so"}
	case "/unchanged":
		w.WriteHeader(http.StatusNotModified)
		return
	case "/moved":
		http.Redirect(w, req, "/one", http.StatusTemporaryRedirect)
		return
	case "/warn":
		response.Warnings = []string{"mind the gap"}
	case "/one":
		add("one")
		var seen corev1.ConfigMap
		if json.Unmarshal(review.Request.Object.Raw, &seen) == nil && seen.Data["two"] != "" {
			add("again")
		}
	case "/two":
		add("two")
	case "/hang":
		select {
		case <-a.end:
		case <-req.Context().Done():
		}
	}
	review.Response, review.Request = response, nil
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review)
}

// at is a webhook about config maps that are labelled with its path.
func (a *answers) at(path string, failure registrationv1.FailurePolicyType) registrationv1.ValidatingWebhook {
	url, none, seconds := a.URL+path, registrationv1.SideEffectClassNone, int32(1)
	if path != "/hang" {
		seconds = 30
	}
	return registrationv1.ValidatingWebhook{
		Name:           strings.Trim(path, "/") + strings.ToLower(string(failure)) + ".example.com",
		ClientConfig:   registrationv1.WebhookClientConfig{URL: &url, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Certificate().Raw})},
		FailurePolicy:  &failure,
		SideEffects:    &none,
		TimeoutSeconds: &seconds,
		ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"hook": strings.Trim(path, "/") + string(failure)}},
		Rules: []registrationv1.RuleWithOperations{{
			Operations: []registrationv1.OperationType{registrationv1.Create},
			Rule:       registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
		}},
		AdmissionReviewVersions: []string{"v1"},
	}
}

func create(ctx context.Context, client kubernetes.Interface, name, hook string, dryRun ...string) (*corev1.ConfigMap, error) {
	c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"hook": hook}}, Data: map[string]string{"a": "b"}}
	return client.CoreV1().ConfigMaps("n").Create(ctx, c, metav1.CreateOptions{DryRun: dryRun})
}

// TestValidatingWebhooksAreObeyed checks that the server follows a webhook's decision, over TLS and in dry runs, too.
// If the webhook does not respond in time, its failurePolicy decides.
func TestValidatingWebhooksAreObeyed(t *testing.T) {
	client, hooks := serve(t), newAnswers(t)
	namespace(t, client, "n")
	configuration := &registrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Webhooks: []registrationv1.ValidatingWebhook{
		hooks.at("/refuse", registrationv1.Fail), hooks.at("/hang", registrationv1.Fail), hooks.at("/hang", registrationv1.Ignore),
	}}
	if _, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), configuration, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	proctest.Eventually(t, "the webhook is asked", func() error {
		_, err := create(t.Context(), client, "a", "refuseFail", metav1.DryRunAll)
		if err == nil {
			return fmt.Errorf("admitted")
		}
		return nil
	})
	for _, dry := range [][]string{nil, {metav1.DryRunAll}} {
		_, err := create(t.Context(), client, "a", "refuseFail", dry...)
		want := `admission webhook "refusefail.example.com" denied the request: not so`
		if status := apierrors.APIStatus(nil); err == nil || err.Error() != want || !asStatus(err, &status) || status.Status().Code != http.StatusTeapot {
			t.Errorf("refused with %v, want %s", err, want)
		}
	}
	called := hooks.called.Load()
	if _, err := create(t.Context(), client, "b", "none"); err != nil || hooks.called.Load() != called {
		t.Errorf("not selected: %v, %d calls", err, hooks.called.Load()-called)
	}
	if _, err := create(t.Context(), client, "c", "hangIgnore"); err != nil {
		t.Errorf("one that may fail: %v", err)
	}
	_, err := create(t.Context(), client, "d", "hangFail")
	if want := `failed calling webhook "hangfail.example.com"`; !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), want) {
		t.Errorf("one that may not fail: %v", err)
	}
}

// TestOddAnswersOfWebhooks checks that a code that HTTP cannot carry becomes 500. Only redirects that net/http would
// follow are reported as redirects.
func TestOddAnswersOfWebhooks(t *testing.T) {
	client, hooks := serve(t), newAnswers(t)
	namespace(t, client, "n")
	cases := map[string]string{
		"odd":       `denied the request: not so`,
		"unchanged": `status code 304`,
		"moved":     `the webhook redirects (307 Temporary Redirect)`,
	}
	configuration := &registrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "v"}}
	for name := range cases {
		configuration.Webhooks = append(configuration.Webhooks, hooks.at("/"+name, registrationv1.Fail))
	}
	if _, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), configuration, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, want := range cases {
		c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "a", Labels: map[string]string{"hook": name + "Fail"}}}
		proctest.Eventually(t, "the webhook is asked", func() error {
			var code int
			err := client.CoreV1().RESTClient().Post().Namespace("n").Resource("configmaps").Body(c).Do(t.Context()).StatusCode(&code).Error()
			if err == nil {
				return fmt.Errorf("%s: admitted", name)
			}
			if code != http.StatusInternalServerError || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %d %v, want 500 and %q", name, code, err, want)
			}
			return nil
		})
	}
}

func asStatus(err error, status *apierrors.APIStatus) bool {
	s, ok := err.(apierrors.APIStatus)
	*status = s
	return ok
}

// TestMutatingWebhooksRunInTurn checks that webhooks mutate an object one after the other. A webhook with a
// reinvocation policy is called again after another has changed the object.
func TestMutatingWebhooksRunInTurn(t *testing.T) {
	client, hooks := serve(t), newAnswers(t)
	namespace(t, client, "n")
	ifNeeded := registrationv1.IfNeededReinvocationPolicy
	var webhooks []registrationv1.MutatingWebhook
	for _, path := range []string{"/one", "/two"} {
		v := hooks.at(path, registrationv1.Fail)
		webhooks = append(webhooks, registrationv1.MutatingWebhook{
			Name: v.Name, ClientConfig: v.ClientConfig, FailurePolicy: v.FailurePolicy, SideEffects: v.SideEffects, Rules: v.Rules,
			AdmissionReviewVersions: v.AdmissionReviewVersions, ReinvocationPolicy: &ifNeeded,
			ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"hook": "both"}},
		})
	}
	configuration := &registrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "m"}, Webhooks: webhooks}
	if _, err := client.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(t.Context(), configuration, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	proctest.Eventually(t, "the webhooks change what is made", func() error {
		made, err := create(t.Context(), client, "a", "both", metav1.DryRunAll)
		if err != nil {
			return err
		}
		if len(made.Data) != 4 || made.Data["again"] != "x" {
			return fmt.Errorf("made %v", made.Data)
		}
		return nil
	})
}
