package nodes

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/larder-io/larder/internal/proctest"
)

// TestGates checks that WebSockets are forwarded to the kubelet unchanged if the feature gates of their translation are
// off, or if the kubelet declares that it serves WebSockets.
func TestGates(t *testing.T) {
	t.Parallel()
	for gates, want := range map[string]map[string]string{
		"":                                {"p": "spdy/3.1", "declares": "websocket"},
		"ExtendWebSocketsToKubelet=false": {"p": "spdy/3.1", "declares": "spdy/3.1"},
		"TranslateStreamCloseWebsocketRequests=false,PortForwardWebsockets=false": {"p": "websocket", "declares": "websocket"},
	} {
		t.Run(gates, func(t *testing.T) {
			var args []string
			if gates != "" {
				args = append(args, "--feature-gates="+gates)
			}
			c := newCluster(t, args...)
			kubelets := map[string]*kubelet{"p": c.terminalPod(t, "p", nil), "declares": c.terminalPod(t, "declares", func(k *kubelet) { k.declares = true })}
			for name, k := range kubelets {
				var out bytes.Buffer
				err := c.exec(t, t.Context(), "WebSocket v5", name, remotecommand.StreamOptions{Stdout: &out}, "echo", "heard")
				translated := want[name] != "websocket" || k.declares
				if translated && (err != nil || out.String() != "heard\n") || !translated && err == nil {
					t.Errorf("%s: output %q, error %v", name, &out, err)
				}
				requests := k.takeRequests()
				if !slices.ContainsFunc(requests, func(s string) bool { return strings.HasSuffix(s, " "+want[name]) }) {
					t.Errorf("%s: the kubelet received %q", name, requests)
				}
			}
		})
	}
}

// TestConnectIsAdmitted checks that a webhook reviews a command before the kubelet receives it.
func TestConnectIsAdmitted(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	k := c.terminalPod(t, "p", nil)
	var mu sync.Mutex
	var calls []string
	hook := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		r := review.Request
		var options corev1.PodExecOptions
		_ = json.Unmarshal(r.Object.Raw, &options)
		mu.Lock()
		calls = append(calls, fmt.Sprintf("%s %s/%s %s %s %s %q", r.Operation, r.Resource.Resource, r.SubResource, r.Name, r.Kind.Kind, r.UserInfo.Username, options.Command))
		mu.Unlock()
		review.Response = &admissionv1.AdmissionResponse{UID: r.UID, Allowed: !slices.Contains(options.Command, "rm"), Result: &metav1.Status{Message: "not that"}}
		_ = json.NewEncoder(w).Encode(review)
	}))
	hook.TLS = &tls.Config{Certificates: []tls.Certificate{c.serving(t)}}
	hook.StartTLS()
	t.Cleanup(hook.Close)
	fail, none := registrationv1.Fail, registrationv1.SideEffectClassNone
	_, err := c.client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), &registrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "connect"},
		Webhooks: []registrationv1.ValidatingWebhook{{
			Name: "connect.example.com", FailurePolicy: &fail, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			ClientConfig: registrationv1.WebhookClientConfig{URL: &hook.URL, CABundle: []byte(c.kubelets.PEM())},
			Rules: []registrationv1.RuleWithOperations{{
				Operations: []registrationv1.OperationType{registrationv1.Connect},
				Rule:       registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods/exec", "pods/attach", "pods/portforward", "pods/proxy", "nodes/proxy"}},
			}},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, transport := range []string{"SPDY v4", "WebSocket v5"} {
		proctest.Eventually(t, transport+" is rejected", func() error {
			k.takeRequests()
			err := c.exec(t, t.Context(), transport, "p", remotecommand.StreamOptions{Stdout: io.Discard}, "rm", "-f", "nothing")
			if err == nil || !strings.Contains(err.Error(), `admission webhook "connect.example.com" denied the request: not that`) {
				return fmt.Errorf("%v", err)
			}
			return nil
		})
		if requests := k.takeRequests(); len(requests) > 0 {
			t.Errorf("%s: the kubelet received %q", transport, requests)
		}
		if err := c.exec(t, t.Context(), transport, "p", remotecommand.StreamOptions{Stdout: io.Discard}, "true"); err != nil {
			t.Error(err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if want := `CONNECT pods/exec p PodExecOptions admin ["rm" "-f" "nothing"]`; !slices.Contains(calls, want) {
		t.Errorf("the webhook reviewed %q, want %s", calls, want)
	}
}

// TestStreamsAreRecorded checks that audit events have the user and the stream, and the response that switched
// protocols.
func TestStreamsAreRecorded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	policy, record := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")
	write(t, policy, "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: Metadata\n  resources: [{group: \"\", resources: [pods/exec, pods/log, pods/attach]}]\n- level: None\n")
	c := newCluster(t, "--audit-policy-file="+policy, "--audit-log-path="+record)
	c.terminalPod(t, "p", nil)
	if err := c.exec(t, t.Context(), "SPDY v4", "p", remotecommand.StreamOptions{Stdout: io.Discard}, "true"); err != nil {
		t.Fatal(err)
	}
	if err := c.exec(t, t.Context(), "WebSocket v5", "p", remotecommand.StreamOptions{Stdout: io.Discard}, "true"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.client.CoreV1().Pods("default").GetLogs("p", &corev1.PodLogOptions{}).DoRaw(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"create exec RequestReceived 0", "create exec ResponseStarted 101", "create exec ResponseComplete 101",
		"get exec RequestReceived 0", "get exec ResponseStarted 101", "get exec ResponseComplete 101",
		"get log RequestReceived 0", "get log ResponseStarted 200", "get log ResponseComplete 200",
	}
	proctest.Eventually(t, "everything is recorded", func() error {
		raw, err := os.ReadFile(record)
		if err != nil {
			return err
		}
		var got []string
		for text := range bytes.Lines(raw) {
			var e struct {
				Stage, Verb    string
				ObjectRef      struct{ Subresource, Name string }
				ResponseStatus struct{ Code int }
				User           struct{ Username string }
			}
			if err := json.Unmarshal(text, &e); err != nil {
				return err
			}
			if e.ObjectRef.Name != "p" || e.User.Username != "admin" {
				t.Errorf("unexpected audit event: %s", text)
			}
			got = append(got, fmt.Sprintf("%s %s %s %d", e.Verb, e.ObjectRef.Subresource, e.Stage, e.ResponseStatus.Code))
		}
		slices.Sort(got)
		sorted := slices.Sorted(slices.Values(want))
		if !slices.Equal(got, sorted) {
			return fmt.Errorf("%q", got)
		}
		return nil
	})
}

// TestStreamsHoldNoSeats checks that the request timeout does not end streams, and that streams hold no seats of flow
// control. The requests are a user's who is not exempt from flow control.
func TestStreamsHoldNoSeats(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "--max-requests-inflight=2", "--max-mutating-requests-inflight=2")
	k := c.terminalPod(t, "p", nil)
	c.grant(t, "reader", rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods", "pods/log", "pods/exec"}, Verbs: []string{"*"}})
	var err error
	// On a slow machine, authorization may take longer than the shortest timeout.
	for _, timeout := range []time.Duration{3 * time.Second, 15 * time.Second, time.Minute} {
		c.restart(t, "--request-timeout="+timeout.String())
		if err = c.holdStreams(t, k, timeout); err == nil {
			return
		}
	}
	t.Error(err)
}

// holdStreams opens streams, lists pods meanwhile, and returns an error if one of the streams ends early. The streams
// last longer than the request timeout.
func (c *cluster) holdStreams(t *testing.T, k *kubelet, timeout time.Duration) error {
	const many = 20
	file := fmt.Sprint("open-", timeout)
	command := fmt.Sprintf("echo began; until [ -e %s ]; do sleep 0.2; done; sleep %d; echo ended", file, timeout/time.Second+1)
	k.run(t, "default/p/c", "sh", "-c", command)
	proctest.Eventually(t, "the kubelet has no streams", func() error { return none(k.serving()) })
	pods := c.clientset(t, c.server, reader).CoreV1().Pods("default")
	g, ctx := errgroup.WithContext(t.Context())
	for i := range many {
		g.Go(func() error {
			stream, err := pods.GetLogs("p", &corev1.PodLogOptions{Follow: true}).Stream(ctx)
			if err != nil {
				return err
			}
			defer stream.Close()
			if text, err := io.ReadAll(stream); string(text) != "began\nended\n" || err != nil {
				return fmt.Errorf("log: %q, error %v", text, err)
			}
			return nil
		})
		g.Go(func() error {
			var out bytes.Buffer
			o := remotecommand.StreamOptions{Stdout: &out}
			x := c.executor(t, transports[i%len(transports)], reader, podPath("p", "exec"), execQuery(&o, "sh", "-c", command))
			if err := x.StreamWithContext(ctx, o); err != nil || out.String() != "began\nended\n" {
				return fmt.Errorf("command: output %q, error %v", &out, err)
			}
			return nil
		})
	}
	proctest.Eventually(t, "all are open", func() error {
		if ctx.Err() != nil { // one has failed
			return nil
		}
		return none(2*many - k.serving())
	})
	for range many {
		// On a slow machine, one request may take longer than its timeout.
		proctest.Eventually(t, "pods are listed", func() error {
			_, err := pods.List(t.Context(), metav1.ListOptions{})
			return err
		})
	}
	write(t, filepath.Join(k.dir, file), "")
	return g.Wait()
}

// TestLargeBodiesAreProxied checks that bodies are forwarded completely in both directions, while they arrive.
func TestLargeBodiesAreProxied(t *testing.T) {
	t.Parallel()
	const size = 50 << 20
	address := needOutward(t)
	p := newPKI(t)
	a := newApp(t, p)
	c := newClusterOf(t, p)
	c.node(t, "n", address, 1)
	c.pod(t, "app", "n", func(pod *corev1.Pod) { pod.Status.PodIP, pod.Status.PodIPs = address, []corev1.PodIP{{IP: address}} }, "c")
	want := sha256.New()
	if _, err := io.Copy(want, noise(size)); err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableCompression: true}}
	defer client.CloseIdleConnections()
	send := func(path string, body io.Reader) *http.Response {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.url()+path, body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+admin)
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { resp.Body.Close() })
		return resp
	}
	for _, to := range []string{fmt.Sprintf("/api/v1/namespaces/default/pods/app:%d/proxy", a.plainPort), fmt.Sprintf("/api/v1/namespaces/default/pods/https:app:%d/proxy", a.securePort), fmt.Sprintf("/api/v1/nodes/https:n:%d/proxy", a.securePort)} {
		for path, body := range map[string]io.Reader{"/echo": noise(size), fmt.Sprintf("/noise?n=%d", size): nil} {
			got := sha256.New()
			if _, err := io.Copy(got, send(to+path, body).Body); err != nil || !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
				t.Errorf("%s%s: the received body is not the sent one, error %v", to, path, err)
			}
		}
		in, out := io.Pipe()
		resp := send(to+"/echo", in)
		lines := bufio.NewReader(resp.Body)
		for i := range 3 {
			fmt.Fprintf(out, "line %d\n", i)
			if text, err := lines.ReadString('\n'); text != fmt.Sprintf("line %d\n", i) {
				t.Fatalf("%s: got %q, error %v", to, text, err)
			}
		}
		out.Close()
	}
	if peak := c.memory(t, "VmHWM"); peak > 700<<20 {
		t.Errorf("bodies were kept in memory: %d MiB", peak>>20)
	}
}

// TestKubeletsBeyondAProxy checks that requests to kubelets, also upgrades, use the proxy in
// --egress-selector-config-file.
func TestKubeletsBeyondAProxy(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	k := newKubelet(t, p, nil)
	socket := filepath.Join(t.TempDir(), "konnectivity")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	calls := 0
	tunnel := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		mu.Lock()
		calls++
		mu.Unlock()
		there, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", k.port))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer there.Close()
		here, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer here.Close()
		fmt.Fprint(here, "HTTP/1.1 200 OK\r\n\r\n")
		go func() { _, _ = io.Copy(there, buffered); there.Close() }()
		_, _ = io.Copy(here, there)
	})}
	served := make(chan struct{})
	go func() { defer close(served); _ = tunnel.Serve(listener) }()
	t.Cleanup(func() { tunnel.Close(); <-served })
	file := filepath.Join(t.TempDir(), "egress.yaml")
	write(t, file, fmt.Sprintf("apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections:\n- name: cluster\n  connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: %s}}}\n", socket))
	c := newClusterOf(t, p, "--egress-selector-config-file="+file)
	c.node(t, "n", "localhost", 1) // nothing listens there
	k.run(t, "default/p/c", "echo", "here")
	proctest.Eventually(t, "the log is printed", func() error { return k.over("default/p/c") })
	c.pod(t, "p", "n", nil, "c")
	if text, err := c.client.CoreV1().Pods("default").GetLogs("p", &corev1.PodLogOptions{}).DoRaw(t.Context()); string(text) != "here\n" {
		t.Errorf("log: %s, error %v", text, err)
	}
	for _, transport := range transports {
		before := func() int { mu.Lock(); defer mu.Unlock(); return calls }()
		var out bytes.Buffer
		if err := c.exec(t, context.WithoutCancel(t.Context()), transport, "p", remotecommand.StreamOptions{Stdout: &out}, "echo", transport); err != nil || out.String() != transport+"\n" {
			t.Errorf("%s: output %q, error %v", transport, &out, err)
		}
		if now := func() int { mu.Lock(); defer mu.Unlock(); return calls }(); now == before {
			t.Errorf("%s did not use the proxy", transport)
		}
	}
}
