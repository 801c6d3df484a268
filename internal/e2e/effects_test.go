package e2e_test

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	externalsigner "k8s.io/kubernetes/pkg/serviceaccount/externaljwt/plugin/testing/v1"
	"k8s.io/utils/ptr"

	"github.com/larder-io/larder/internal/proctest"
)

// TestTokenFlagsTakeEffect checks that flags set the audience, the issuer and the lifetime of service account tokens,
// and that requests without a token are rejected.
func TestTokenFlagsTakeEffect(t *testing.T) {
	p := serve(t, "--unsafe-no-fsync", "--anonymous-auth=false", "--api-audiences=here,there", "--service-account-max-token-expiration=2h",
		"--service-account-extend-token-expiration=false", "--service-account-issuer=https://issuer.example",
		"--service-account-jwks-uri=https://keys.example/jwks", "--external-hostname=api.example")
	if code, err := p.status("/livez", ""); code != http.StatusUnauthorized || err != nil {
		t.Errorf("without a token: status %d, error %v", code, err)
	}
	client := p.client()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}
	if _, err := client.CoreV1().ServiceAccounts("default").Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	long := int64(10800)
	token, err := client.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "robot",
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &long}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if left := time.Until(token.Status.ExpirationTimestamp.Time); left > 2*time.Hour+time.Minute {
		t.Errorf("the token expires after %v", left)
	}
	if got := strings.Join(token.Spec.Audiences, " "); got != "here there" {
		t.Errorf("audiences: %s", got)
	}
	review, err := client.AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token.Status.Token, Audiences: []string{"there"}},
	}, metav1.CreateOptions{})
	if err != nil || !review.Status.Authenticated || review.Status.User.Username != "system:serviceaccount:default:robot" {
		t.Errorf("token review %+v, error %v", review, err)
	}
	if got := podTokenLifetime(t, client); got != 3607 {
		t.Errorf("a token that must not be extended expires after %v s", got)
	}
	if text := p.want(200, "/.well-known/openid-configuration"); !strings.Contains(text, `"issuer":"https://issuer.example","jwks_uri":"https://keys.example/jwks"`) {
		t.Errorf("unexpected OpenID metadata: %s", text)
	}
	if text := p.want(200, "/api"); !strings.Contains(text, fmt.Sprintf(`"serverAddress":"api.example:%d"`, p.port)) {
		t.Errorf("the server's address is not in %s", text)
	}
}

// podTokenLifetime returns the seconds for which a pod's token is accepted, if kubelet requests 3607 s, which the
// server may extend.
func podTokenLifetime(t *testing.T, client kubernetes.Interface) float64 {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "of-pod"}}
	if _, err := client.CoreV1().ServiceAccounts("default").Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{ServiceAccountName: account.Name, Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	if _, err := client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	token, err := client.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), account.Name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](3607), BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	claims, err := base64.RawURLEncoding.DecodeString(strings.Split(token.Status.Token, ".")[1])
	var times struct{ Iat, Exp float64 }
	if err = errors.Join(err, json.Unmarshal(claims, &times)); err != nil {
		t.Fatal(err)
	}
	return times.Exp - times.Iat
}

// TestExternalSigner checks that the program behind a socket signs tokens, if a flag names the socket.
func TestExternalSigner(t *testing.T) {
	dir, err := os.MkdirTemp("", "signer") // the paths of sockets must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	signer := externalsigner.NewMockSigner(t, socket)
	defer signer.CleanUp()
	p := serve(t, "--unsafe-no-fsync", "--service-account-signing-endpoint="+socket)
	client := p.client()
	if _, err := client.CoreV1().ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	token, err := client.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "robot", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	head, err := base64.RawURLEncoding.DecodeString(strings.Split(token.Status.Token, ".")[0])
	if err != nil || !strings.Contains(string(head), fmt.Sprintf("%q", signer.SigningKeyID)) {
		t.Errorf("token header %s, error %v, want key %s", head, err, signer.SigningKeyID)
	}
	if code, err := p.status("/version", token.Status.Token); code != 200 || err != nil {
		t.Errorf("with the signer's token: status %d, error %v", code, err)
	}
}

// TestObjectFlagsTakeEffect checks flags that affect objects: addresses, ports, tolerations, the lifetime of events,
// and admission plugins.
func TestObjectFlagsTakeEffect(t *testing.T) {
	p := serve(t, "--unsafe-no-fsync", "--service-cluster-ip-range=10.99.0.0/24", "--service-node-port-range=31000-31003",
		"--default-not-ready-toleration-seconds=11", "--default-unreachable-toleration-seconds=12", "--disable-admission-plugins=ServiceAccount",
		"--advertise-address=192.0.2.9", "--event-ttl=1s", "--lease-reuse-duration-seconds=1", "--etcd-prefix=/elsewhere", "--allow-privileged=false", "--watch-cache-sizes=namespaces#0")
	client := p.client()
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(80)}},
	}}
	service, err := client.CoreV1().Services("default").Create(t.Context(), service, metav1.CreateOptions{})
	if err != nil || !strings.HasPrefix(service.Spec.ClusterIP, "10.99.0.") || service.Spec.Ports[0].NodePort < 31000 || service.Spec.Ports[0].NodePort > 31003 {
		t.Errorf("the kubernetes service: %+v, error %v", service.Spec, err)
	}
	proctest.Eventually(t, "the advertised address is published", func() error {
		slices, err := client.DiscoveryV1().EndpointSlices("default").List(t.Context(), metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=kubernetes"})
		if err != nil || len(slices.Items) != 1 || slices.Items[0].Endpoints[0].Addresses[0] != "192.0.2.9" {
			return fmt.Errorf("endpoint slices %v, error %v", slices, err)
		}
		return nil
	})
	privileged := true
	container := corev1.Container{Name: "c", Image: "i", SecurityContext: &corev1.SecurityContext{Privileged: &privileged}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{container}}}
	if _, err := client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("a privileged pod: %v", err)
	}
	pod.Spec.Containers[0].SecurityContext = nil
	// The disabled plugin would require a service account, which does not exist.
	pod, err = client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	seconds := make(map[string]int64)
	for _, toleration := range pod.Spec.Tolerations {
		seconds[toleration.Key] = *toleration.TolerationSeconds
	}
	if seconds[corev1.TaintNodeNotReady] != 11 || seconds[corev1.TaintNodeUnreachable] != 12 {
		t.Errorf("tolerations: %v", seconds)
	}
	event := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "short"}, InvolvedObject: corev1.ObjectReference{Namespace: "default"}}
	if _, err := client.CoreV1().Events("default").Create(t.Context(), event, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	proctest.Eventually(t, "the event has expired", func() error {
		if _, err := client.CoreV1().Events("default").Get(t.Context(), "short", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("get: error %v", err)
		}
		return nil
	})
	// Without a cache, a limit applies at revision 0.
	namespaces, err := client.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{ResourceVersion: "0", Limit: 1})
	if err != nil || len(namespaces.Items) != 1 {
		t.Errorf("%d namespaces, error %v, want one", len(namespaces.Items), err)
	}
	if len(valueAt(t, p.etcd(), "/elsewhere/namespaces/default")) == 0 {
		t.Error("etcd has no object below the prefix")
	}
}

// TestLimitFlagsTakeEffect checks flags that limit the duration and the number of requests and watches.
func TestLimitFlagsTakeEffect(t *testing.T) {
	t.Parallel()
	p := serve(t, "--unsafe-no-fsync", "--enable-priority-and-fairness=false", "--max-mutating-requests-inflight=1", "--max-requests-inflight=1",
		"--token-auth-file", tokens(t), "--authorization-mode=RBAC", "--min-request-timeout=1", "--request-timeout=20s")
	p.want(200, "/readyz/poststarthook/max-in-flight-filter")
	client := p.client()
	if _, err := client.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "alice"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "alice"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	proctest.Eventually(t, "alice may", func() error {
		if code, err := p.status("/api/v1/namespaces", "alice-token"); code != 200 || err != nil {
			return fmt.Errorf("%d %v", code, err)
		}
		return nil
	})
	// A completed request may hold its seat for a moment. A watch holds a seat only at its start, and ends after a second
	// or two.
	none := func() io.Reader { return nil }
	if got := p.seated("alice-token", "GET", "/api/v1/namespaces?watch=1", none); !strings.HasPrefix(got, "200 ") {
		t.Errorf("watch: %s", got)
	}
	body, finish := io.Pipe()
	defer finish.Close()
	held, began := make(chan string, 1), time.Now()
	go func() {
		got := p.seated("alice-token", "POST", "/api/v1/namespaces/default/configmaps", func() io.Reader {
			return io.MultiReader(strings.NewReader(`{"metadata":`), body)
		})
		if lasted := time.Since(began); lasted > 45*time.Second { // 60 s is the default
			got = fmt.Sprintf("after %v: %s", lasted, got)
		}
		held <- got
	}()
	proctest.Eventually(t, "a second write is rejected", func() error {
		resp, text := p.fetchAs("alice-token", "POST", "/api/v1/namespaces/default/configmaps?dryRun=All", strings.NewReader(`{"metadata":{"name":"c"}}`))
		if resp.StatusCode != http.StatusTooManyRequests {
			return fmt.Errorf("%d %s", resp.StatusCode, text)
		}
		return nil
	})
	if got := p.seated("alice-token", "GET", "/api/v1/namespaces", none); !strings.HasPrefix(got, "200 ") {
		t.Errorf("a read during the write: %s", got)
	}
	rejected, waiting := make(chan struct{}), make(chan struct{})
	go func() { // a read at a future revision takes 3 s
		defer close(waiting)
		for more := true; more; {
			p.seated("alice-token", "GET", "/api/v1/namespaces?resourceVersion=99999999&resourceVersionMatch=NotOlderThan", none)
			select {
			case <-rejected:
				more = false
			case <-t.Context().Done():
				more = false
			default:
			}
		}
	}()
	proctest.Eventually(t, "a second read is rejected", func() error {
		if resp, text := p.fetchAs("alice-token", "GET", "/api/v1/namespaces", nil); resp.StatusCode != http.StatusTooManyRequests {
			return fmt.Errorf("%d %s", resp.StatusCode, text)
		}
		return nil
	})
	close(rejected)
	<-waiting
	if got := <-held; !strings.HasPrefix(got, "504 ") {
		t.Errorf("the request that takes too long: %s", got)
	}
}

// seated sends a request until flow control admits it, and returns the response.
func (p *process) seated(token, method, path string, body func() io.Reader) string {
	for {
		resp, text := p.fetchAs(token, method, path, body())
		if resp.StatusCode != http.StatusTooManyRequests {
			return fmt.Sprintf("%d %s", resp.StatusCode, text)
		}
	}
}

// TestAuditFlagsTakeEffect checks the flags of the audit log and webhook.
func TestAuditFlagsTakeEffect(t *testing.T) {
	dir := t.TempDir()
	policy, log, config := filepath.Join(dir, "policy"), filepath.Join(dir, "log"), filepath.Join(dir, "webhook")
	write := func(file, text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(policy, "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n- level: RequestResponse\n  resources: [{group: \"\", resources: [configmaps]}]\n")
	var (
		mu   sync.Mutex
		sent []string // guarded by mu
	)
	sink := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		var list struct {
			APIVersion string
			Items      []struct{ RequestURI string }
		}
		err := json.NewDecoder(req.Body).Decode(&list)
		mu.Lock()
		defer mu.Unlock()
		sent = append(sent, fmt.Sprintf("%s %d %v", list.APIVersion, len(list.Items), err))
	}))
	defer sink.Close()
	write(config, kubeconfigOf(sink.URL))
	p := serve(t, "--unsafe-no-fsync", "--audit-policy-file", policy, "--audit-log-path", log, "--audit-log-mode=blocking-strict", "--audit-log-format=json",
		"--audit-log-truncate-enabled", "--audit-log-truncate-max-event-size=2000", "--audit-log-truncate-max-batch-size=20000", "--audit-log-maxage=1",
		"--audit-log-maxbackup=2", "--audit-log-maxsize=1", "--audit-log-compress",
		"--audit-webhook-config-file", config, "--audit-webhook-mode=batch", "--audit-webhook-batch-max-size=2", "--audit-webhook-batch-max-wait=1h",
		"--audit-webhook-batch-throttle-enable=false", "--audit-webhook-batch-buffer-size=100", "--audit-webhook-initial-backoff=1s")
	maps := p.client().CoreV1().ConfigMaps("default")
	for i := range 2 {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("m%d", i)}, Data: map[string]string{"k": strings.Repeat("x", i*4000)}}
		if _, err := maps.Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	var short, truncated int
	for line := range strings.Lines(string(text)) {
		switch {
		case !strings.Contains(line, `"resource":"configmaps","namespace":"default"`) || !strings.Contains(line, `"verb":"create"`):
		case strings.Contains(line, `"audit.k8s.io/truncated":"true"`):
			truncated++
		case strings.Contains(line, `"requestObject"`):
			short++
		}
	}
	if short != 1 || truncated != 1 {
		t.Errorf("%d complete records, %d truncated ones:\n%s", short, truncated, text)
	}
	proctest.Eventually(t, "a batch of two is sent", func() error { // although --audit-webhook-batch-max-wait is an hour
		mu.Lock()
		defer mu.Unlock()
		if len(sent) == 0 || sent[0] != "audit.k8s.io/v1 2 <nil>" {
			return fmt.Errorf("%q", sent)
		}
		return nil
	})
	// Log files that exceed the maximum size are rotated and compressed.
	for i := range 1500 {
		if _, err := maps.Update(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m0"}, Data: map[string]string{"k": fmt.Sprint(i, strings.Repeat("y", 200))}}, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	proctest.Eventually(t, "a rotated log file is compressed", func() error {
		if parts, err := filepath.Glob(filepath.Join(dir, "log-*.gz")); len(parts) == 0 {
			return fmt.Errorf("%v", err)
		}
		return nil
	})
}

// kubeconfigOf returns a kubeconfig for a webhook's server.
func kubeconfigOf(server string) string {
	return "apiVersion: v1\nkind: Config\nclusters: [{name: x, cluster: {server: " + server + "}}]\ncontexts: [{name: x, context: {cluster: x, user: x}}]\ncurrent-context: x\nusers: [{name: x, user: {}}]\n"
}

// TestAccessWebhookFlagsTakeEffect checks that webhooks authenticate and authorize, with the API version and cache
// durations that flags set.
func TestAccessWebhookFlagsTakeEffect(t *testing.T) {
	var (
		mu      sync.Mutex
		reviews = make(map[string]int) // guarded by mu: by kind and version
	)
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var review struct {
			APIVersion, Kind string
			Spec             struct{ User, Token string }
		}
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		mu.Lock()
		reviews[review.Kind+" "+review.APIVersion]++
		mu.Unlock()
		status := fmt.Sprintf(`{"allowed":%v}`, review.Spec.User == "eve")
		if review.Kind == "TokenReview" {
			status = fmt.Sprintf(`{"authenticated":%v,"user":{"username":"eve"}}`, review.Spec.Token == "eve-token")
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"apiVersion":%q,"kind":%q,"status":%s}`, review.APIVersion, review.Kind, status)
	}))
	defer hook.Close()
	config := filepath.Join(t.TempDir(), "webhook")
	if err := os.WriteFile(config, []byte(kubeconfigOf(hook.URL)), 0o600); err != nil {
		t.Fatal(err)
	}
	p := serve(t, "--unsafe-no-fsync", "--authorization-mode=RBAC,Webhook", "--authorization-webhook-config-file", config, "--authorization-webhook-version=v1",
		"--authorization-webhook-cache-authorized-ttl=1h", "--authorization-webhook-cache-unauthorized-ttl=0s",
		"--authentication-token-webhook-config-file", config, "--authentication-token-webhook-version=v1", "--authentication-token-webhook-cache-ttl=1h")
	for range 3 {
		if code, err := p.status("/api/v1/namespaces", "eve-token"); code != http.StatusOK || err != nil {
			t.Errorf("a token that the webhook accepts: status %d, error %v", code, err)
		}
		if code, err := p.status("/api/v1/namespaces", "nobody-token"); code != http.StatusUnauthorized || err != nil {
			t.Errorf("an unknown token: status %d, error %v", code, err)
		}
		if code, err := p.status("/api/v1/namespaces", ""); code != http.StatusForbidden || err != nil {
			t.Errorf("no token: status %d, error %v", code, err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if n := reviews["TokenReview authentication.k8s.io/v1"]; n < 2 || n > 4 || len(reviews) != 2 || reviews["SubjectAccessReview authorization.k8s.io/v1"] < 4 {
		t.Errorf("the webhooks got reviews %v", reviews)
	}
}

// TestAccessConfigFlagsTakeEffect checks that files configure authentication and authorization.
func TestAccessConfigFlagsTakeEffect(t *testing.T) {
	dir := t.TempDir()
	authentication, authorization := filepath.Join(dir, "n"), filepath.Join(dir, "z")
	for file, text := range map[string]string{
		authentication: "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\nanonymous: {enabled: true, conditions: [{path: /livez}]}\n",
		authorization:  "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers: [{type: AlwaysAllow, name: alwaysallow}]\n",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := serve(t, "--unsafe-no-fsync", "--authentication-config", authentication, "--authorization-config", authorization, "--token-auth-file", tokens(t))
	for path, want := range map[string]int{"/livez": 200, "/api/v1/secrets": 401} {
		if code, err := p.status(path, ""); code != want || err != nil {
			t.Errorf("%s without a token: status %d, error %v", path, code, err)
		}
	}
	if code, err := p.status("/api/v1/secrets", "alice-token"); code != 200 || err != nil {
		t.Errorf("alice: status %d, error %v", code, err)
	}
}

// TestFlagsOfLarderTakeEffect checks the flags that set limits of caches, connections and requests, and the interval of
// consistency checks. Other flags have their defaults.
func TestFlagsOfLarderTakeEffect(t *testing.T) {
	p := serve(t, "--unsafe-no-fsync", "--cache-max-bytes=64Mi,pods=8Mi", "--max-connections-per-address=500", "--consistency-check-interval=1s",
		"--max-requests-inflight=300", "--max-mutating-requests-inflight=190")
	if text, want := p.want(200, "/.well-known/openid-configuration"), fmt.Sprintf(`:%d/openid/v1/jwks"`, p.port); !strings.Contains(text, want) {
		t.Errorf("no %s in %s", want, text)
	}
	proctest.Eventually(t, "the metrics have the limits", func() error { // addresses are counted when an informer sees them
		metrics := p.want(200, "/metrics")
		for _, want := range []string{
			`larder_cache_budget_limit_bytes{budget="pods",of="all"} 8.388608e+06`, `larder_cache_budget_limit_bytes{budget="shared",of="all"} 6.7108864e+07`,
			`larder_connections_limit{of="address"} 500`, `apiserver_flowcontrol_nominal_limit_seats{priority_level="workload-low"} 200`, // of a total of 490
			`kube_apiserver_clusterip_allocator_allocated_ips{cidr="10.0.0.0/24"} 1`,
		} {
			if !strings.Contains(metrics, "\n"+want+"\n") {
				return fmt.Errorf("no %s", want)
			}
		}
		return nil
	})
	if got, want := podTokenLifetime(t, p.client()), (365 * 24 * time.Hour).Seconds(); got != want {
		t.Errorf("a pod's token expires after %v s, want %v", got, want)
	}
	review := &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: metav1.NamespaceDefault}}
	review, err := p.client().AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(), review, metav1.CreateOptions{})
	if err != nil || len(review.Status.ResourceRules) == 0 {
		t.Errorf("the administrator's rules: %v, error %v", review, err)
	}
	checked := regexp.MustCompile(`(?m)^apiserver_storage_consistency_checks_total\{.*resource="configmaps".*status="success"\} [1-9]`)
	proctest.Eventually(t, "a cache is compared with etcd", func() error {
		if metrics := p.want(200, "/metrics"); !checked.MatchString(metrics) {
			return errors.New("no comparison in the metrics")
		}
		return nil
	})
}

// TestEmulationAndMetricsFlagsTakeEffect checks that flags make a server serve APIs newer than the emulated version,
// and that flags disable metrics.
func TestEmulationAndMetricsFlagsTakeEffect(t *testing.T) {
	// 1.36 added v1 of these APIs, which had v1beta1 before.
	const path, older = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies", "/apis/admissionregistration.k8s.io/v1beta1/mutatingadmissionpolicies"
	p := serve(t, "--unsafe-no-fsync", "--emulated-version=1.35", "--emulation-forward-compatible", "--runtime-config=admissionregistration.k8s.io/v1beta1=true",
		"--disabled-metrics=apiserver_request_total", "--allow-metric-labels=apiserver_request_duration_seconds,verb=LIST", "--show-hidden-metrics-for-version=1.35", "--vmodule=server=1", "--min-compatibility-version=1.34")
	p.want(200, path)
	p.want(200, older)
	metrics := p.want(200, "/metrics")
	if strings.Contains(metrics, "\napiserver_request_total{") || !strings.Contains(metrics, "\napiserver_request_duration_seconds_count{") {
		t.Error("the disabled metric is served, or the other one is not")
	}
	if !strings.Contains(metrics, `verb="unexpected"`) {
		t.Error("a label has a value that is not allowed")
	}
}

// fetchAs sends a request with a token and no other credential.
func (p *process) fetchAs(token, method, path string, body io.Reader) (*http.Response, string) {
	p.t.Helper()
	target, err := url.Parse(p.url() + path)
	if err != nil {
		p.t.Error(err)
	}
	req := &http.Request{Method: method, URL: target, Header: http.Header{"Authorization": {"Bearer " + token}, "Content-Type": {"application/json"}}}
	if body != nil {
		req.Body = io.NopCloser(body)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
	resp, err := transport.RoundTrip(req.WithContext(p.t.Context()))
	if err != nil {
		p.t.Error(err)
		return &http.Response{}, ""
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Error(errors.Join(errors.New(path), err))
	}
	return resp, string(text)
}
