package e2e_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/proctest/testcert"
)

// serveAny serves webhooks and an aggregated API: it denies writes, converts by changing the apiVersion, and serves an
// empty API.
func serveAny(w http.ResponseWriter, req *http.Request) {
	var review struct {
		APIVersion string         `json:"apiVersion"`
		Kind       string         `json:"kind"`
		Request    map[string]any `json:"request"`
	}
	w.Header().Set("Content-Type", "application/json")
	if req.Method == http.MethodGet {
		fmt.Fprint(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"far.example.com/v1","resources":[]}`)
		return
	}
	if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	response := map[string]any{"uid": review.Request["uid"], "allowed": false, "result": map[string]any{"status": "Success"}, "status": map[string]any{"message": "from beyond"}}
	if objects, ok := review.Request["objects"].([]any); ok {
		for _, object := range objects {
			object.(map[string]any)["apiVersion"] = review.Request["desiredAPIVersion"]
		}
		response["convertedObjects"] = objects
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": review.APIVersion, "kind": review.Kind, "response": response})
}

// pointed has the service of each consumer, and the address of the service's endpoint.
var pointed = map[string]string{"hook": "192.0.2.7", "conversion": "192.0.2.8", "far": "192.0.2.9"}

// pointConsumers creates the services, and objects that use them.
func pointConsumers(t *testing.T, p *process, ca []byte) (clusterIPs map[string]string) {
	t.Helper()
	client, clusterIPs := p.client(), make(map[string]string)
	for name, address := range pointed {
		service, err := client.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "https", Port: 443}}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		clusterIPs[name] = service.Spec.ClusterIP
		if _, err := client.DiscoveryV1().EndpointSlices("default").Create(t.Context(), &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
			AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address}}},
			Ports: []discoveryv1.EndpointPort{{Name: ptr.To("https"), Port: ptr.To(int32(8443))}},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	bundle, err := json.Marshal(ca)
	if err != nil {
		t.Fatal(err)
	}
	at := func(name string) string {
		return fmt.Sprintf(`"caBundle":%s,"service":{"namespace":"default","name":%q}`, bundle, name)
	}
	version := func(name string, storage bool) string {
		return fmt.Sprintf(`{"name":%q,"served":true,"storage":%v,"schema":{"openAPIV3Schema":{"type":"object"}}}`, name, storage)
	}
	for path, body := range map[string]string{
		"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations": `{"metadata":{"name":"deny"},"webhooks":[{"name":"deny.example.com","clientConfig":{` + at("hook") +
			`},"rules":[{"operations":["CREATE"],"apiGroups":[""],"apiVersions":["v1"],"resources":["secrets"]}],"sideEffects":"None","admissionReviewVersions":["v1"]}]}`,
		"/apis/apiextensions.k8s.io/v1/customresourcedefinitions": `{"metadata":{"name":"boxes.example.com"},"spec":{"group":"example.com","scope":"Cluster","names":{"plural":"boxes","kind":"Box"},"versions":[` +
			version("v1", true) + "," + version("v2", false) + `],"conversion":{"strategy":"Webhook","webhook":{"conversionReviewVersions":["v1"],"clientConfig":{` + at("conversion") + `}}}}}`,
		"/apis/apiregistration.k8s.io/v1/apiservices": `{"metadata":{"name":"v1.far.example.com"},"spec":{"group":"far.example.com","version":"v1","groupPriorityMinimum":100,"versionPriority":100,` + at("far") + `}}`,
	} {
		if resp, text := p.ask(http.MethodPost, path, body, "Content-Type: application/json"); resp.StatusCode != http.StatusCreated {
			t.Fatalf("%s: %d %s", path, resp.StatusCode, text)
		}
	}
	return clusterIPs
}

// TestServicesAreResolved checks that the server reaches webhooks and aggregated servers through the cluster's egress
// proxy at the cluster IPs of their services, or, with --enable-aggregator-routing, at their endpoints.
func TestServicesAreResolved(t *testing.T) {
	t.Parallel()
	authority := testcert.New(t, "services")
	cert := authority.Sign(t, "services", nil, func(c *x509.Certificate) {
		c.DNSNames, c.ExtKeyUsage = []string{"hook.default.svc", "conversion.default.svc", "far.default.svc"}, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	})
	far := httptest.NewUnstartedServer(http.HandlerFunc(serveAny))
	far.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	far.StartTLS()
	t.Cleanup(far.Close)
	for _, routing := range []bool{false, true} {
		socket, proxy := newTunnel(t, map[string]string{anyName: strings.TrimPrefix(far.URL, "https://")})
		file := filepath.Join(t.TempDir(), "egress.yaml")
		if err := os.WriteFile(file, fmt.Appendf(nil, "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections:\n- name: cluster\n  connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: %s}}}\n", socket), 0o600); err != nil {
			t.Fatal(err)
		}
		p := serve(t, "--unsafe-no-fsync", "--egress-selector-config-file="+file, fmt.Sprintf("--enable-aggregator-routing=%v", routing))
		clusterIPs := pointConsumers(t, p, []byte(authority.PEM()))
		proctest.Eventually(t, "the admission webhook denies", func() error {
			if resp, text := p.ask(http.MethodPost, "/api/v1/namespaces/default/secrets", `{"metadata":{"generateName":"s"}}`, "Content-Type: application/json"); !strings.Contains(text, "denied the request") {
				return fmt.Errorf("%d %s", resp.StatusCode, text)
			}
			return nil
		})
		proctest.Eventually(t, "the conversion webhook converts", func() error {
			p.ask(http.MethodPost, "/apis/example.com/v1/boxes", `{"apiVersion":"example.com/v1","kind":"Box","metadata":{"name":"a"}}`, "Content-Type: application/json")
			if resp, text := p.ask(http.MethodGet, "/apis/example.com/v2/boxes/a", ""); resp.StatusCode != http.StatusOK || !strings.Contains(text, `"apiVersion":"example.com/v2"`) {
				return fmt.Errorf("%d %s", resp.StatusCode, text)
			}
			return nil
		})
		proctest.Eventually(t, "the aggregated server responds", func() error {
			if resp, text := p.ask(http.MethodGet, "/apis/far.example.com/v1", ""); resp.StatusCode != http.StatusOK || !strings.Contains(text, "far.example.com/v1") {
				return fmt.Errorf("%d %s", resp.StatusCode, text)
			}
			return nil
		})
		proxy.mu.Lock()
		for name, address := range pointed {
			endpoint, service := proxy.connects[address+":8443"], proxy.connects[clusterIPs[name]+":443"]
			if (endpoint > 0) != routing || (service > 0) == routing {
				t.Errorf("routing to endpoints %v: %s got %d connections at its endpoint, %d at its cluster IP", routing, name, endpoint, service)
			}
		}
		proxy.mu.Unlock()
	}
}
