package e2e_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/proctest/testcert"
)

// buildClient builds a client program from the module below testdata/clients that names its version. The go command
// caches the result.
func buildClient(t *testing.T, module, program string) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), filepath.Base(program))
	build := exec.Command("go", "build", "-ldflags=-w", "-o", binary, program)
	build.Dir = filepath.Join("testdata", "clients", module)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", program, err, out)
	}
	return binary
}

// sample is a k8s.io/sample-apiserver, which serves flunders and fischers. It stores them in an etcd of its own, and
// delegates authentication and authorization to Larder.
type sample struct {
	*proctest.Process
	t         *testing.T
	p         *process
	authority *testcert.Authority // the CA of its certificate
	port      int
}

var flunders = schema.GroupVersionResource{Group: "wardle.example.com", Version: "v1alpha1", Resource: "flunders"}

// sampleAccess has the sample's rights, from its own examples, and the policies that these lack.
const sampleAccess = `{"apiVersion":"v1","kind":"List","items":[
{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"wardle"}},
{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"demo"}},
{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"apiserver","namespace":"wardle"}},
{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"wardle:system:auth-delegator"},
 "roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"system:auth-delegator"},"subjects":[{"kind":"ServiceAccount","name":"apiserver","namespace":"wardle"}]},
{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"wardle"},"rules":[
 {"apiGroups":[""],"resources":["namespaces"],"verbs":["get","list","watch"]},
 {"apiGroups":["admissionregistration.k8s.io"],"resources":["*"],"verbs":["get","list","watch"]},
 {"apiGroups":["flowcontrol.apiserver.k8s.io"],"resources":["prioritylevelconfigurations","flowschemas"],"verbs":["list","watch"]}]},
{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"wardle"},
 "roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"wardle"},"subjects":[{"kind":"ServiceAccount","name":"apiserver","namespace":"wardle"}]},
{"apiVersion":"v1","kind":"Service","metadata":{"name":"api","namespace":"wardle"},"spec":{"type":"ExternalName","externalName":"localhost"}}]}`

// newSample starts a sample and registers its versions with p.
func newSample(t *testing.T, p *process, k *kubectl) *sample {
	t.Helper()
	s := &sample{t: t, p: p, authority: testcert.New(t, "sample"), port: proctest.Port(t)}
	newKubectl(t, p.kubeconfig(), "wardle").must(t, sampleAccess, "create", "-f", "-")
	newKubectl(t, p.kubeconfig(), "kube-system").must(t, "", "create", "rolebinding", "wardle-auth-reader", "--role=extension-apiserver-authentication-reader", "--serviceaccount=wardle:apiserver")
	dir := t.TempDir()
	certFile, keyFile := testcert.Write(t, dir, "sample", s.authority.Sign(t, "sample", nil, func(c *x509.Certificate) {
		c.DNSNames, c.ExtKeyUsage = []string{"api.wardle.svc"}, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}))
	kubeconfig := filepath.Join(dir, "kubeconfig")
	s.writeKubeconfig(kubeconfig)
	binary, store := buildClient(t, "sample-apiserver", "k8s.io/sample-apiserver"), serveEtcd(t)
	s.Process = proctest.New(t, "the sample", func() *exec.Cmd {
		return exec.Command(binary, "--etcd-servers", store, "--kubeconfig", kubeconfig, "--authentication-kubeconfig", kubeconfig, "--authorization-kubeconfig", kubeconfig,
			"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", s.port), "--tls-cert-file", certFile, "--tls-private-key-file", keyFile)
	})
	s.start()
	for i, version := range []string{"v1alpha1", "v1beta1"} {
		k.must(t, fmt.Sprintf(`{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":"%s.wardle.example.com"},"spec":{"caBundle":%q,"group":"wardle.example.com",`+
			`"groupPriorityMinimum":1000,"versionPriority":%d,"service":{"name":"api","namespace":"wardle","port":%d},"version":%q}}`, version, base64.StdEncoding.EncodeToString([]byte(s.authority.PEM())), 15+i, s.port, version), "create", "-f", "-")
	}
	return s
}

func (s *sample) start() {
	s.t.Helper()
	if err := s.Start(); err != nil {
		s.t.Fatal(err)
	}
}

// writeKubeconfig writes a kubeconfig with which the sample authenticates to p as its service account.
func (s *sample) writeKubeconfig(file string) {
	s.t.Helper()
	account := s.p.client().CoreV1().ServiceAccounts("wardle")
	token, err := account.CreateToken(s.t.Context(), "apiserver", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	admin := s.p.config()
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: admin.Host, CertificateAuthorityData: admin.CAData, CertificateAuthority: admin.CAFile}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		s.t.Fatal(err)
	}
}

// status sends a request directly to the sample, with a bearer token, and returns the status code.
func (s *sample) status(token string) (int, error) {
	pool := x509.NewCertPool()
	pool.AddCert(s.authority.Cert)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: "api.wardle.svc"}, DisableKeepAlives: true}
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d/apis/wardle.example.com/v1alpha1/namespaces/demo/flunders", s.port), nil)
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

// TestSampleAPIServer checks that an aggregated server that uses kube-apiserver's library, as most do, works completely
// for users with rights. Its API must disappear and return with its process.
func TestSampleAPIServer(t *testing.T) {
	proxies := testcert.New(t, "proxies")
	certFile, keyFile := testcert.Write(t, t.TempDir(), "proxy", proxies.Sign(t, "front-proxy", nil, nil))
	authority := filepath.Join(t.TempDir(), "proxies.crt")
	if err := os.WriteFile(authority, []byte(proxies.PEM()), 0o600); err != nil {
		t.Fatal(err)
	}
	p := serve(t, "--unsafe-no-fsync", "--token-auth-file", tokens(t), "--proxy-client-cert-file", certFile, "--proxy-client-key-file", keyFile,
		"--requestheader-client-ca-file", authority, "--requestheader-allowed-names=front-proxy", "--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-")
	k := newKubectl(t, p.kubeconfig(), "demo")
	s := newSample(t, p, k)
	s.Eventually(t, "is served", func() error { return k.try("get", "flunders,fischers") })
	k.must(t, "", "wait", longWait, "--for=condition=Available", "apiservice/v1alpha1.wardle.example.com", "apiservice/v1beta1.wardle.example.com")
	testSampleDocuments(t, s, k)
	testSampleWrites(t, k)
	testSampleAccess(t, s, k)
	testSampleList(t, s)
	testSampleReturns(t, s, k)
}

// testSampleDocuments checks that discovery and OpenAPI contain the sample's API.
func testSampleDocuments(t *testing.T, s *sample, k *kubectl) {
	t.Helper()
	proctest.Eventually(t, "kubectl lists flunders", func() error {
		out := k.run("", "api-resources", "--api-group=wardle.example.com", "--no-headers")
		if got := strings.Fields(out); !slices.Equal(got, strings.Fields("fischers wardle.example.com/v1alpha1 false Fischer flunders wardle.example.com/v1beta1 true Flunder")) {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	for what, part := range map[string]struct{ path, accept, holds string }{
		"aggregated discovery": {"/apis", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", `{"resource":"fischers","responseKind":{"group":"","version":"","kind":"Fischer"}`},
		"OpenAPI v2":           {"/openapi/v2", "application/json", `/apis/wardle.example.com/v1beta1/namespaces/{namespace}/flunders/{name}`},
		"OpenAPI v3":           {"/openapi/v3", "application/json", `/openapi/v3/apis/wardle.example.com/v1alpha1?hash=`},
		"its own document":     {"/openapi/v3/apis/wardle.example.com/v1alpha1", "application/json", `DisallowedFlunders holds a list of Flunder.Names that are disallowed.`},
	} {
		proctest.Eventually(t, what+" has the sample", func() error {
			if resp, body := s.p.ask(http.MethodGet, part.path, "", "Accept: "+part.accept); resp.StatusCode != http.StatusOK || !strings.Contains(body, part.holds) {
				return fmt.Errorf("%d %.300s", resp.StatusCode, body)
			}
			return nil
		})
	}
	for what, line := range map[string]string{"flunders.spec": "flunderReference\t<string>", "fischers": "disallowedFlunders\t<[]string>"} {
		if out := k.must(t, "", "explain", what); !strings.Contains(out, line) {
			t.Errorf("explain %s: %s", what, out)
		}
	}
}

// testSampleWrites checks that the sample defaults, admits and rejects writes, and that a watch receives them.
func testSampleWrites(t *testing.T, k *kubectl) {
	t.Helper()
	const flunder = `{"apiVersion":"wardle.example.com/v1alpha1","kind":"Flunder","metadata":{"name":%q}%s}`
	const deprecated = "Warning: wardle.example.com/v1alpha1 Flunder is deprecated in v1.3+, unavailable in v1.10+\n"
	proctest.Eventually(t, "the sample's admission is ready", func() error {
		return k.pipe(`{"apiVersion":"wardle.example.com/v1alpha1","kind":"Fischer","metadata":{"name":"fish"},"disallowedFlunders":["banned"]}`, "apply", "-f", "-")
	})
	seen := proctest.New(t, "kubectl", func() *exec.Cmd {
		return k.command("get", "flunders", "-w", "--output-watch-events", "--no-headers")
	})
	if err := seen.Start(); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		stdin, args, out string
	}{
		{fmt.Sprintf(flunder, "one", ""), "create -f -", deprecated + "flunder.wardle.example.com/one created\n"},
		{fmt.Sprintf(flunder, "one", `,"spec":{"reference":"x"}`), "apply --server-side --force-conflicts -f -", deprecated + "flunder.wardle.example.com/one serverside-applied\n"},
		{fmt.Sprintf(flunder, "bad", `,"spec":{"nope":1}`), "create -f -", deprecated + "Error from server (BadRequest): error when creating \"STDIN\": " +
			"Flunder in version \"v1alpha1\" cannot be handled as a Flunder: strict decoding error: unknown field \"spec.nope\"\n(exit status 1)\n"},
		{"", "get flunder one -o jsonpath={.metadata.managedFields[*].manager}/{.spec}", `kubectl/{"flunderReference":"x","referenceType":"Flunder"}`},
		{"", "delete flunder one", "flunder.wardle.example.com \"one\" deleted from demo namespace\n"},
	} {
		if got := k.run(step.stdin, strings.Fields(step.args)...); got != step.out {
			t.Errorf("kubectl %s: %q, want %q", step.args, got, step.out)
		}
	}
	if out := k.run(fmt.Sprintf(flunder, "banned", ""), "create", "-f", "-"); !strings.Contains(out, "Error from server (Forbidden)") || !strings.Contains(out, "this name may not be used, please change the resource name") {
		t.Errorf("a banned name: %s", out)
	}
	seen.Eventually(t, "receives everything", func() error {
		var events []string
		for line := range strings.Lines(seen.Output()) {
			if fields := strings.Fields(line); len(fields) > 1 {
				events = append(events, fields[0]+" "+fields[1])
			}
		}
		if want := []string{"ADDED one", "MODIFIED one", "DELETED one"}; !slices.Equal(events, want) {
			return fmt.Errorf("%q, want %q", events, want)
		}
		return nil
	})
	seen.Kill()
}

// pipe is try with input.
func (k *kubectl) pipe(stdin string, args ...string) error {
	cmd := k.command(args...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl %q: %w: %s", args, err, out)
	}
	return nil
}

// testSampleAccess checks that the sample authenticates users with the proxy's header fields and with token reviews,
// and authorizes them with access reviews.
func testSampleAccess(t *testing.T, s *sample, k *kubectl) {
	t.Helper()
	direct := func(token string, want int) func() error {
		return func() error {
			if code, err := s.status(token); err != nil || code != want {
				return fmt.Errorf("%s: got status %d and error %v, want %d", token, code, err, want)
			}
			return nil
		}
	}
	for token, code := range map[string]int{"root-token": 200, "alice-token": 403, "guess": 401} {
		if err := direct(token, code)(); err != nil {
			t.Error(err)
		}
	}
	const forbidden = "Error from server (Forbidden): flunders.wardle.example.com is forbidden: User \"%s\" cannot list resource \"flunders\" in API group \"wardle.example.com\" in the namespace \"demo\"\n(exit status 1)\n"
	for _, who := range []string{"alice", "joe"} {
		if out := k.run("", "get", "flunders", "--as", who); out != fmt.Sprintf(forbidden, who) {
			t.Errorf("as %s: %q", who, out)
		}
	}
	k.must(t, "", "create", "role", "flunders", "--verb=get,list,watch", "--resource=flunders.wardle.example.com")
	k.must(t, "", "create", "rolebinding", "flunders", "--role=flunders", "--group=devs")
	proctest.Eventually(t, "alice may read", direct("alice-token", 200)) // the sample has cached the denial
	proctest.Eventually(t, "alice may read through Larder", func() error { return k.try("get", "flunders", "--as=alice", "--as-group=devs") })
	if out := k.run("", "delete", "flunder", "one", "--as=alice", "--as-group=devs"); !strings.Contains(out, `User "alice" cannot delete resource "flunders"`) {
		t.Errorf("alice deletes: %s", out)
	}
}

// testSampleList checks that a list of several megabytes arrives complete, whole and in pages.
func testSampleList(t *testing.T, s *sample) {
	t.Helper()
	const count = 200
	all := s.client().Namespace("demo")
	filler := strings.Repeat("x", 20<<10)
	for i := range count {
		if _, err := all.Create(t.Context(), newFlunder(fmt.Sprintf("large-%d", i), filler), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, limit := range []int64{0, 30} {
		names, options := make(map[string]bool), metav1.ListOptions{Limit: limit}
		for more := true; more; more = options.Continue != "" {
			list, err := all.List(t.Context(), options)
			if err != nil {
				t.Fatal(err)
			}
			for _, item := range list.Items {
				if names[item.GetName()] = true; item.GetAnnotations()["filler"] != filler {
					t.Errorf("%s has changed", item.GetName())
				}
			}
			options.Continue = list.GetContinue()
		}
		if len(names) != count {
			t.Errorf("with limit %d: %d flunders, want %d", limit, len(names), count)
		}
	}
	if err := all.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (s *sample) client() dynamic.NamespaceableResourceInterface {
	s.t.Helper()
	config := rest.CopyConfig(s.p.config())
	config.WarningHandler = rest.NoWarnings{}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		s.t.Fatal(err)
	}
	return client.Resource(flunders)
}

func newFlunder(name, filler string) *unstructured.Unstructured {
	f := &unstructured.Unstructured{Object: map[string]any{"apiVersion": flunders.GroupVersion().String(), "kind": "Flunder"}}
	f.SetName(name)
	f.SetAnnotations(map[string]string{"filler": filler})
	return f
}

// testSampleReturns checks that after the sample has stopped, only its own requests fail, and that an informer
// continues when it is back.
func testSampleReturns(t *testing.T, s *sample, k *kubectl) {
	t.Helper()
	config := rest.CopyConfig(s.p.config())
	config.WarningHandler = rest.NoWarnings{}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	factory := dynamicinformer.NewDynamicSharedInformerFactory(client, 0)
	informer := factory.ForResource(flunders).Informer()
	var mu sync.Mutex
	known := make(map[string]bool)
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) {
		mu.Lock()
		defer mu.Unlock()
		known[obj.(*unstructured.Unstructured).GetName()] = true
	}}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer factory.Shutdown()
	defer cancel()
	factory.Start(ctx.Done())
	knows := func(name string) {
		t.Helper()
		proctest.Eventually(t, "the informer has "+name, func() error {
			mu.Lock()
			defer mu.Unlock()
			if !known[name] {
				return fmt.Errorf("it has %v", known)
			}
			return nil
		})
	}
	create := func(name string) func() error {
		return func() error {
			_, err := client.Resource(flunders).Namespace("demo").Create(t.Context(), newFlunder(name, ""), metav1.CreateOptions{})
			return err
		}
	}
	if err := create("before")(); err != nil {
		t.Fatal(err)
	}
	knows("before")
	s.Kill()
	k.must(t, "", "wait", longWait, "--for=condition=Available=false", "apiservice/v1alpha1.wardle.example.com")
	proctest.Eventually(t, "requests are rejected", func() error {
		if resp, body := s.p.ask(http.MethodGet, "/apis/wardle.example.com/v1alpha1/flunders", ""); resp.StatusCode != http.StatusServiceUnavailable || body != "service unavailable\n" {
			return fmt.Errorf("%d %q", resp.StatusCode, body)
		}
		return nil
	})
	if out := k.must(t, "", "get", "apiservice", "v1alpha1.wardle.example.com", "--no-headers"); !strings.Contains(out, "False (FailedDiscoveryCheck)") {
		t.Errorf("kubectl get apiservice: %s", out)
	}
	k.must(t, "", "create", "configmap", "meanwhile")
	s.start()
	k.must(t, "", "wait", longWait, "--for=condition=Available", "apiservice/v1alpha1.wardle.example.com")
	proctest.Eventually(t, "a flunder is created", create("after"))
	knows("after")
}
